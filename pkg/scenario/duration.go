package scenario

import (
	"encoding/json"
	"fmt"
	"time"
)

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes 90s as "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON parses a duration such as "90s". It rejects a number without a unit.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("invalid duration %s: must have a unit, such as 90s or 5m", data)
	}
	parsed, err := parseDuration(text)
	*d = parsed
	return err
}

func parseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("invalid duration %q: must have a unit, such as 90s or 5m", text)
	case d < 0:
		return 0, fmt.Errorf("invalid duration %q: must not be negative", text)
	}
	return Duration(d), nil
}

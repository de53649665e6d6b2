package scenario

import (
	"encoding/json"
	"fmt"
	"time"
)

// Std returns the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes 90s as "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads "90s". A bare number is refused: of what would it be one?
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("%s is no duration: write one with its unit, as 90s or 5m", data)
	}
	parsed, err := parseDuration(text)
	*d = parsed
	return err
}

func parseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no duration: write one with its unit, as 90s or 5m", text)
	case d < 0:
		return 0, fmt.Errorf("%q is negative", text)
	}
	return Duration(d), nil
}

// Package ttl provides the flags for the duration of a fault.
package ttl

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

// The default and the limits of a TTL. With a shorter TTL, a fault could expire before it is verified.
const (
	Default  = 30 * time.Minute
	shortest = 10 * time.Second
	longest  = 24 * time.Hour
)

// Flags are --ttl and --reason.
type Flags struct {
	TTL    time.Duration
	Reason string
}

// New returns the default values.
func New() Flags { return Flags{TTL: Default} }

// AddFlags registers the flags.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&f.TTL, "ttl", f.TTL,
		"Time after which the fault ends unless reverted earlier, 10s to 24h; 0 for no end, which requires --reason")
	flags.StringVar(&f.Reason, "reason", f.Reason, "Reason for the fault, stored in the record for other users")
}

// Validate checks both flags.
func (f *Flags) Validate() error {
	f.Reason = strings.TrimSpace(f.Reason)
	switch {
	case f.TTL == 0 && f.Reason == "":
		return errors.New(
			"--ttl 0 requires --reason TEXT: other users must be able to see why the fault has no end",
		)
	case f.TTL < 0:
		return fmt.Errorf("invalid value %s for --ttl: must not be negative; must be %s to %s, or 0 with --reason",
			f.TTL,
			short(shortest), short(longest))
	case f.TTL != 0 && (f.TTL < shortest || f.TTL > longest):
		return fmt.Errorf("invalid value %s for --ttl: must be %s to %s, or 0 for no end with --reason", f.TTL,
			short(shortest),
			short(longest))
	case len(f.Reason) > 500:
		return fmt.Errorf("--reason is too long: %d bytes; must be at most 500", len(f.Reason))
	}
	return nil
}

// Apply sets the TTL and the reason of a plan.
func (f *Flags) Apply(plan *fault.Plan) { plan.TTL, plan.Reason = f.TTL, f.Reason }

// String describes the duration, such as "for 30m" or "until the run is reverted".
func (f *Flags) String() string {
	if f.TTL == 0 {
		return "until the run is reverted"
	}
	return "for " + short(f.TTL)
}

// short formats a duration without zero parts, such as 30m instead of 30m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

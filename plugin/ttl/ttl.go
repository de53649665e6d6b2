// Package ttl is the flags that say how long a fault stays.
package ttl

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

// The limits of a TTL. Shorter ones are over before the fault is proven; longer ones are forgotten.
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

// New returns the defaults.
func New() Flags { return Flags{TTL: Default} }

// AddFlags registers the flags.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&f.TTL, "ttl", f.TTL,
		"How long the fault stays if nobody reverts it before, 10s to 24h; 0 for no end, which needs a --reason")
	flags.StringVar(&f.Reason, "reason", f.Reason, "Why, for the record and for whoever finds it")
}

// Validate checks both.
func (f *Flags) Validate() error {
	f.Reason = strings.TrimSpace(f.Reason)
	switch {
	case f.TTL == 0 && f.Reason == "":
		return errors.New(
			"--ttl 0: a fault without an end needs a reason that others can read: give --reason TEXT, or a --ttl up to 24h",
		)
	case f.TTL < 0:
		return fmt.Errorf("--ttl %s: a time cannot be negative: give %s to %s, or 0 with a --reason", f.TTL,
			short(shortest), short(longest))
	case f.TTL != 0 && (f.TTL < shortest || f.TTL > longest):
		return fmt.Errorf("--ttl %s: give %s to %s, or 0 for no end with a --reason", f.TTL, short(shortest),
			short(longest))
	case len(f.Reason) > 500:
		return fmt.Errorf("--reason: it has %d bytes, and 500 fit", len(f.Reason))
	}
	return nil
}

// Apply puts both into a plan.
func (f *Flags) Apply(plan *fault.Plan) { plan.TTL, plan.Reason = f.TTL, f.Reason }

// String returns how long: "for 30m", or "until it is reverted".
func (f *Flags) String() string {
	if f.TTL == 0 {
		return "until it is reverted"
	}
	return "for " + short(f.TTL)
}

// short returns a duration without its zero parts: 30m, not 30m0s.
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

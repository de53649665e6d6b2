package xid

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Evidence is the origin of a template's text.
type Evidence string

const (
	Real Evidence = "real" // found in a real log
	// from the driver's format string, or from a detector's test, with plausible values
	Rendered Evidence = "rendered"
	Generic  Evidence = "generic" // wording by this project; no driver line is known for this code
)

// Template is the text that the driver prints after the code and the process.
type Template struct {
	Variant string `json:"variant"` // name for Options.Variant: "default", "channel", "reboot", ...
	// Body may contain placeholders for numbers: {ch=DEFAULT} for a channel, or {NAME%VERB:LOW-HIGH=DEFAULT}.
	// Placeholders with the same name get the same number, even across a cascade.
	Body     string       `json:"body"`
	Source   string       `json:"source"`
	Evidence Evidence     `json:"evidence"`
	Drivers  []Generation `json:"drivers,omitempty"` // drivers with this wording; nil means all
	Process  Process      `json:"process"`           // the process to name if the user specifies none
	// NoProcess is true if the driver never prints a process with this text.
	NoProcess bool `json:"noProcess,omitempty"`
}

func templateOf(r row) (int, Template, error) {
	n, err := strconv.Atoi(r["code"])
	if err != nil {
		return 0, Template{}, fmt.Errorf("code is %q", r["code"])
	}
	e, err := r.oneOf("evidence", "real rendered generic")
	if err != nil {
		return 0, Template{}, err
	}
	t := Template{Variant: r["variant"], Body: r["body"], Source: r["source"], Evidence: Evidence(e)}
	if drivers := r.list("drivers"); !slices.Equal(drivers, []string{"any"}) {
		for _, d := range drivers {
			g, err := ParseGeneration(d)
			if err != nil {
				return 0, Template{}, err
			}
			t.Drivers = append(t.Drivers, g)
		}
	}
	switch p := r["process"]; p {
	case "":
	case "never":
		t.NoProcess = true
	default:
		if t.Process, err = ParseProcess(p); err != nil {
			return 0, Template{}, err
		}
	}
	if _, err := newValues(0).fill(t.Body, DefaultGeneration); err != nil {
		return 0, Template{}, fmt.Errorf("body of code %d: %w", n, err)
	}
	return n, t, nil
}

// values chooses the numbers in templates. With seed 0, every number is the template's default, which is usually the
// number in the real line. With any other seed, numbers are random. A named number keeps its value.
type values struct {
	rnd   *rand.Rand
	named map[string]uint64
}

func newValues(seed uint64) *values {
	v := &values{named: map[string]uint64{}}
	if seed != 0 {
		v.rnd = rand.New(rand.NewPCG(seed, 0))
	}
	return v
}

// number returns the value for name, between low and high. It reuses a value that another template has set.
func (v *values) number(name string, low, high, byDefault uint64) uint64 {
	if n, ok := v.named[name]; ok && name != "" {
		return n
	}
	n := byDefault
	if v.rnd != nil {
		n = low + v.rnd.Uint64N(high-low+1)
	}
	if name != "" {
		v.named[name] = n
	}
	return n
}

var (
	hole    = regexp.MustCompile(`\{[^{}]*\}`)
	channel = regexp.MustCompile(`^\{ch=(\w+)\}$`)
	verb    = regexp.MustCompile(`^\{(\w*)(%0?\d*[dx]):(\w+)-(\w+)=(\w+)\}$`)
)

// fill replaces the placeholders of a body.
func (v *values) fill(body string, g Generation) (string, error) {
	var failed error
	text := hole.ReplaceAllStringFunc(body, func(h string) string {
		if failed != nil {
			return h
		}
		if m := channel.FindStringSubmatch(h); m != nil {
			n, err := strconv.ParseUint(m[1], 0, 32)
			if err != nil {
				failed = fmt.Errorf("%s: %w", h, err)
			}
			return g.channel(v.number("chan", 1, 0x7f, n))
		}
		m := verb.FindStringSubmatch(h)
		if m == nil {
			failed = fmt.Errorf("%s is not {NAME%%VERB:LOW-HIGH=DEFAULT}", h)
			return h
		}
		var n [3]uint64
		for i, s := range m[3:6] {
			var err error
			if n[i], err = strconv.ParseUint(s, 0, 64); err != nil {
				failed = fmt.Errorf("%s: %w", h, err)
				return h
			}
		}
		low, high, byDefault := n[0], n[1], n[2]
		// The size of the full uint64 range does not fit in a uint64, so this range must be rejected as well.
		if low > byDefault || byDefault > high || high-low+1 == 0 {
			failed = fmt.Errorf("%s: the default is outside the range", h)
			return h
		}
		return fmt.Sprintf(m[2], v.number(m[1], low, high, byDefault))
	})
	if failed == nil && strings.ContainsAny(text, "{}") {
		failed = fmt.Errorf("%q has an unpaired brace", body)
	}
	return text, failed
}

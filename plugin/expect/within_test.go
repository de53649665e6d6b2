package expect

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// A reaction has its own time, or the one for all.
func TestWithin(t *testing.T) {
	t.Parallel()
	f := Flags{expect: []string{"detect", "cordon=NVSentinel"}, not: []string{"drained"}}
	f.within = []string{"90s", "cordoned=3m", " drain=2m"}
	if err := f.Validate(printer.Format{}); err != nil {
		t.Fatal(err)
	}
	expect, err := f.expectations(f.expect, false)
	if err != nil || expect[0].Within.Std() != 90*time.Second || expect[1].Within.Std() != 3*time.Minute {
		t.Errorf("%+v, %v", expect, err)
	}
	not, err := f.expectations(f.not, true)
	if err != nil || not[0].For.Std() != 2*time.Minute || f.longest() != 3*time.Minute {
		t.Errorf("%+v, %v", not, err)
	}
	f.within = nil
	if f.longest() != DefaultWithin {
		t.Error(f.longest())
	}
}

// A time that has no effect, or that is ambiguous, is an error before anything is injected.
func TestWithinErrors(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"5":                     "must be a time with a unit",
		"1ms":                   "1s to 24h",
		"cordon=25h":            "1s to 24h",
		"cordonn=1m":            "did you mean cordon",
		"drain=1m":              "specifies a time for drained, which is neither in --expect",
		"cordon=1m,cordoned=2m": "cordoned already has a time",
		"1m,2m":                 "a time for all reactions",
	} {
		f := Flags{expect: []string{"cordon"}, within: strings.Split(words, ",")}
		if err := f.Validate(printer.Format{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", words, err)
		}
	}
}

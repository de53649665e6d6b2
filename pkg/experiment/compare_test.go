package experiment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// took returns verdicts of rounds of an expectation: those that it took these seconds, or -1 if it is missing.
func took(name string, seconds ...float64) []Verdict {
	var all []Verdict
	for _, s := range seconds {
		v := Verdict{Name: name, OK: true, State: StateOK, After: s, Limit: 60}
		if s < 0 {
			v.OK, v.State, v.After = false, StateMissing, 0
		}
		all = append(all, v)
	}
	if len(all) > 1 {
		for i := range all {
			number(all[i:i+1], i+1)
		}
	}
	return all
}

// resultOf returns a result with these verdicts, which passed if all of them are positive.
func resultOf(all ...[]Verdict) Result {
	r := Result{Name: "x", Passed: true, Verdicts: slices.Concat(all...)}
	r.Passed = r.Failed() == 0
	return r
}

// CI relies on which changes are for the worse.
func TestCompare(t *testing.T) {
	t.Parallel()
	one := func(seconds ...float64) Result { return resultOf(took("a", seconds...)) }
	b := took("b", 1)
	not := func(seconds float64) Result {
		r := one(seconds)
		r.Verdicts[0].Not = true
		return r
	}
	late := func(seconds float64) Result {
		r := one(seconds)
		r.Verdicts[0].OK, r.Verdicts[0].State = false, StateLate
		return resultOf(r.Verdicts)
	}
	percent, err := ParseSlower("20%")
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := ParseSlower("5s")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		before, after Result
		slower        Slower
		worse         bool
		want          string // seconds, worse and slower of the first change
	}{
		"the same":               {one(1), one(1), percent, false, "0.0 false false"},
		"slower is only shown":   {one(1), one(9), Slower{}, false, "8.0 false false"},
		"slower by percent":      {one(10), one(12.1), percent, true, "2.1 false true"},
		"within the percentage":  {one(10), one(11.9), percent, false, "1.9 false false"},
		"slower by time":         {one(10), one(15.1), seconds, true, "5.1 false true"},
		"within the time":        {one(1), one(5.9), seconds, false, "4.9 false false"},
		"noise":                  {one(0), one(0.09), percent, false, "0.1 false false"},
		"from nothing":           {one(0), one(0.2), percent, true, "0.2 false true"},
		"faster":                 {one(9), one(1), percent, false, "-8.0 false false"},
		"missing now":            {one(1), one(-1), percent, true, "nil true false"},
		"still missing":          {one(-1), one(-1), percent, false, "nil false false"},
		"late, now missing":      {late(99), one(-1), percent, true, "nil true false"},
		"missing, now late":      {one(-1), late(99), percent, false, "nil false false"},
		"still late":             {late(99), late(70), percent, false, "-29.0 false false"},
		"met now":                {one(-1), one(1), percent, false, "nil false false"},
		"median of rounds":       {one(1, 2, 9), one(3, 3, 4, 99), percent, true, "1.5 false true"},
		"rounds and one":         {one(1, 2, 9), one(2), percent, false, "0.0 false false"},
		"met in fewer rounds":    {one(1, 1), one(1, -1, 1), percent, true, "0.0 true false"},
		"met in more rounds":     {one(1, -1), one(1, 1, -1), percent, false, "0.0 false false"},
		"no longer expected":     {resultOf(took("a", 1), b), resultOf(b), percent, true, "nil true false"},
		"was missing, no longer": {resultOf(took("a", -1), b), resultOf(b), percent, false, "nil false false"},
		"what must not happen":   {not(1), not(9), percent, false, "nil false false"},
		"left behind": {
			one(1), Result{Verdicts: took("a", 1), LeftBehind: []string{"b"}}, percent, true,
			"0.0 false false",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Compare(c.before, c.after, c.slower)
			if err != nil {
				t.Fatal(err)
			}
			one, shown := got.Items[0], "nil"
			if one.Seconds != nil {
				shown = fmt.Sprintf("%.1f", *one.Seconds)
			}
			shown += fmt.Sprintf(" %t %t", one.Worse, one.Slower)
			if got.Worse != c.worse || shown != c.want {
				t.Errorf("worse %t, %s", got.Worse, shown)
			}
		})
	}
	if _, err := Compare(one(1), resultOf(took("b", 1)), Slower{}); err == nil {
		t.Error("results of two experiments without a common expectation were compared")
	}
}

// An invalid threshold is an error: it must not let everything pass.
func TestParseSlower(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "20", "-5%", "0%", "x%", "NaN%", "Inf%", "0s", "-1s", strings.Repeat("9", 99)} {
		if s, err := ParseSlower(text); err == nil || len(err.Error()) > 150 {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

// A file that is not a result is refused with a reason, whoever wrote it.
func TestReadResult(t *testing.T) {
	t.Parallel()
	const head = `{"apiVersion":"gpufault.dev/v1alpha1","kind":"ExperimentResult"`
	for text, want := range map[string]string{
		"":           "f is not the output of run -o json: ",
		"a: b":       "f is not the output of run -o json: ",
		head + `}{}`: "f is not the output of run -o json: ",
		`{"kind":"Run"}`:// of another command
		`must be apiVersion gpufault.dev/v1alpha1 and kind ExperimentResult, not "" and "Run"`,
		head + `,"verdicts":[{}]}`:             `f: verdicts[0]: unknown state ""`,
		head + `,"verdicts":[{"state":"ok"}]}`: "name must be 1 to 1000 bytes",
		head + `,"verdicts":[{"name":"a","state":"ok"}]}`:                       "ok is false, but state is ok",
		head + `,"verdicts":[{"name":"a","state":"late","after":1e30}]}`:        "an implausible number of seconds",
		head + `,"verdicts":[{"name":"a","state":"late","limit":-1}]}`:          "an implausible number of seconds",
		head + `,"verdicts":[{"name":"a","state":"late","round":-1}]}`:          "round must not be negative",
		head + `,"verdicts":[{"name":"a","state":"` + strings.Repeat("x", 1000): "is not the output",
		head + `,"name":"` + strings.Repeat("x", maxResult):                     "f is larger than 32 MiB",
	} {
		_, err := ReadResult("f", strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("%.100s: %.400v, want %s", text, err, want)
		}
	}
}

// FuzzReadResult holds that what is read can be compared with itself, is then no worse, and stays the same when it is
// written and read again.
func FuzzReadResult(f *testing.F) {
	for _, r := range []Result{resultOf(took("a", 1, 2), took("b", -1)), resultOf(took("a", 1))} {
		r.APIVersion, r.Kind = "gpufault.dev/v1alpha1", KindResult
		raw, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadResult("f", bytes.NewReader(data))
		if err != nil {
			return
		}
		seen := map[Key]bool{}
		for _, k := range r.Keys() {
			if seen[k] {
				t.Fatalf("%+v is there twice", k)
			}
			seen[k] = true
		}
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadResult("f", bytes.NewReader(raw)); err != nil {
			t.Fatal(err)
		}
		if c, err := Compare(r, r, Slower{percent: 1}); err == nil && c.Worse {
			t.Fatalf("worse than itself: %+v", c)
		}
	})
}

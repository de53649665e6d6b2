package pci

import (
	"testing"
)

func TestParsePCI(t *testing.T) {
	for s, want := range map[string]string{
		"0000:17:00.0": "0000:17:00.0", "00000000:17:00.0": "0000:17:00.0", "0000:C8:1F.7": "0000:c8:1f.7",
		"10000:01:00.0": "10000:01:00.0",
		"0000:17:00":    "0000:17:00.0", "FFFFFFFF:FF:1F.7": "ffffffff:ff:1f.7",
		"": "", "17:00.0": "", "0000:17:20.0": "", "0000:17:00.8": "", "0000:100:00.0": "", "0000:17:00.0.0": "",
		"x:17:00.0": "", "-1:17:00.0": "",
	} {
		at, err := Parse(s)
		if (err == nil) != (want != "") || err == nil && at.String() != want {
			t.Errorf("%q: got %v, %v; want %q", s, at, err, want)
		}
	}
}

func FuzzParsePCI(f *testing.F) {
	f.Add("00000000:17:00.0")
	f.Fuzz(func(t *testing.T, s string) {
		at, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(at.String()); err != nil || again != at {
			t.Errorf("%q is %v, and that is %v, %v", s, at, again, err)
		}
	})
}

package containerd

import "testing"

// The spellings that distributions use for the version of their containerd must all be understood.
func TestParseRelease(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Release{
		"v2.3.7": {2, 3, 7}, "1.7.28~ds1-0ubuntu1": {1, 7, 28}, "v2.1.4-k3s1": {2, 1, 4}, "2.3.7+unknown": {2, 3, 7},
		"1.6.39": {1, 6, 39}, "2.0": {2, 0, 0}, "v2.4.0-beta.1": {2, 4, 0}, "1.7.29-1": {1, 7, 29},
		"v2.1.5-k3s1.32": {2, 1, 5},
	} {
		if got, err := ParseRelease(text); err != nil || got != want {
			t.Errorf("ParseRelease(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "v", "latest", "cri-o 1.30.1", "2", "1.2.3.4", "99999999999999999999.1.1"} {
		if got, err := ParseRelease(text); err == nil {
			t.Errorf("ParseRelease(%q) = %v, want an error", text, got)
		}
	}
	if r := (Release{2, 0, 5}); r.AtLeast(2, 1) || !r.AtLeast(2, 0) || !r.AtLeast(1, 7) || r.String() != "2.0.5" {
		t.Errorf("the order of releases is wrong for %v", r)
	}
}

package api

import (
	"testing"
)

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aé", 2, "a…"}, {"aaé", 4, "aaé"}, {"", 0, ""}, {"日本", 4, "日…"},
		{"\xff\xff\xff\xff\xff\xff", 5, "\xff…"},
	} {
		if got := Shorten(tc.text, tc.most); got != tc.want {
			t.Errorf("%q in %d bytes: got %q, want %q", tc.text, tc.most, got, tc.want)
		}
	}
}

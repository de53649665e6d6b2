package ttl

import (
	"strings"
	"testing"
	"time"
)

// A fault that stays for ever, or nearly, must be somebody's explicit wish.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags Flags
		want  string // in the error; empty: fine
	}{
		{Flags{TTL: Default}, ""},
		{Flags{TTL: 24 * time.Hour}, ""},
		{Flags{TTL: 10 * time.Second}, ""},
		{Flags{TTL: 0, Reason: "week of chaos"}, ""},
		{Flags{TTL: 0}, "--reason"},
		{Flags{TTL: 0, Reason: "  "}, "--reason"},
		{Flags{TTL: -time.Minute}, "negative"},
		{Flags{TTL: 25 * time.Hour}, "10s to 24h"},
		{Flags{TTL: time.Second}, "10s to 24h"},
		{Flags{TTL: time.Hour, Reason: strings.Repeat("x", 501)}, "500"},
	} {
		err := test.flags.Validate()
		if test.want == "" && err != nil ||
			test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v, want %q", test.flags, err, test.want)
		}
	}
}

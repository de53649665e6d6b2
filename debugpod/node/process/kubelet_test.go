package process

import (
	"strings"
	"testing"
)

func FuzzTopLevel(f *testing.F) {
	f.Add("containerRuntimeEndpoint: unix:///run/c.sock # x\n")
	f.Add(`{"containerRuntimeEndpoint":"unix:///x"}`)
	f.Add("'containerRuntimeEndpoint' : \"x\"")
	f.Fuzz(func(t *testing.T, text string) {
		value := TopLevel([]byte(text), "containerRuntimeEndpoint")
		if strings.Contains(value, "\n") && !strings.HasPrefix(strings.TrimSpace(text), "{") {
			t.Errorf("%q: a value of two lines: %q", text, value)
		}
		if !strings.Contains(text, "containerRuntimeEndpoint") && value != "" && !strings.Contains(text, `\u`) {
			t.Errorf("%q: made up %q", text, value)
		}
	})
}

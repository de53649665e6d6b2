package inspect

import (
	"errors"
	"os"
	"testing"
)

func TestHostnameOfNamespace(t *testing.T) {
	want, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	got, err := hostname("/proc/self/ns/uts")
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("this needs root: %v", err)
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

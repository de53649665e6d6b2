package podflags

import (
	"strings"
	"testing"
)

// TestOtherImage: an image that runs as root on the node is named before the question, unless it is the default one.
// The environment may have chosen it.
func TestOtherImage(t *testing.T) {
	t.Parallel()
	f := New()
	if named := f.OtherImage(); named != "" {
		t.Errorf("the default image: %q", named)
	}
	f.Image = "127.0.0.1:5001/evil:1"
	if named := f.OtherImage(); !strings.Contains(named, f.Image) {
		t.Errorf("another image: %q", named)
	}
}

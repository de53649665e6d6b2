package podflags

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
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

// TestTheDefaultImageIsNotCompared: to make this build's image, only to see that the default is another, would cost
// every command with a debug pod 50 ms.
func TestTheDefaultImageIsNotCompared(t *testing.T) {
	made := own
	own = func() (*image.Image, error) {
		t.Error("this build's image is made")
		return made()
	}
	defer func() { own = made }()
	f := New()
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
	if f.Spec("run", "node", "namespace").HasHelper {
		t.Error("the default image is taken for one with the helper")
	}
}

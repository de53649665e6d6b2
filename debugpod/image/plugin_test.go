package image

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
)

// plugin returns a program that ParsePlugin accepts, with the string that each build of the plugin contains.
func plugin(t *testing.T) Plugin {
	t.Helper()
	p, err := ParsePlugin(append(testProgram(t), marker...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testProgram returns a static program for Linux.
func testProgram(t *testing.T) []byte {
	t.Helper()
	if len(helper.Architectures()) == 0 {
		t.Skip("no helper was built: make build")
	}
	program, err := helper.For(helper.Architectures()[0])
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(program)
}

// The image has the plugin for its own architecture only, beside the same helpers as without it, and each client of the
// build recognizes it by its tag.
func TestImageWithPlugin(t *testing.T) {
	t.Parallel()
	p := plugin(t)
	without := made(t)
	with, err := NewWithPlugin(fakeHelper, []string{"amd64", "arm64"}, p)
	if err != nil {
		t.Fatal(err)
	}
	for i, platform := range with.Platforms {
		layers, err := platform.Image.Layers()
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if platform.Name == "linux/"+p.Arch {
			want = 2
		}
		helper, err := layers[0].Digest()
		if err != nil || len(layers) != want {
			t.Fatalf("%s has %d layers, wanted %d (%v)", platform.Name, len(layers), want, err)
		}
		old, err := without.Platforms[i].Image.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if before, err := old[0].Digest(); err != nil || before != helper {
			t.Errorf("%s: the layer of the helper is another: %s, before %s (%v)", platform.Name, helper, before, err)
		}
	}
	if !strings.HasPrefix(with.Tag, without.Tag+"-"+p.Arch+"-") {
		t.Errorf("tag %s does not begin with that of the image without the plugin, %s", with.Tag, without.Tag)
	}
	own := func() (*Image, error) { return without, nil }
	for _, reference := range []string{"r/i:" + with.Tag, "r/i:" + with.Tag + "@" + with.Digest.String()} {
		if has, err := HasHelper(reference, own); !has || err != nil || PluginIn(reference) != p.Arch {
			t.Errorf("%s: has the helper: %v (%v), the plugin for %q", reference, has, err, PluginIn(reference))
		}
	}
	other := strings.Replace("r/i:"+with.Tag, without.Tag, "gpu-fault-000000000000", 1)
	if has, err := HasHelper(other, own); has || err == nil {
		t.Errorf("the image of another build is accepted: %v, %v", has, err)
	}
	if arch := PluginIn("r/i:" + without.Tag); arch != "" {
		t.Errorf("the image without the plugin is said to have it for %s", arch)
	}
}

// A program that could not run in the image is refused before the image is made.
func TestParsePluginRefuses(t *testing.T) {
	t.Parallel()
	program := testProgram(t)
	sparc := slices.Clone(program)
	sparc[18] = 2 // e_machine
	unmarked := bytes.ReplaceAll(program, []byte(marker), make([]byte, len(marker)))
	for want, data := range map[string][]byte{
		"not a Linux program":         []byte("MZ"),
		"not the program kubectl-gpu": unmarked,
		"must be for amd64 or arm64":  sparc,
	} {
		if _, err := ParsePlugin(data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, wanted %q", err, want)
		}
	}
}

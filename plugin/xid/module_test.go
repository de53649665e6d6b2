package xid

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod/kmodtest"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// The builder's image is pulled only where something is to be built; who gives a module gets the ordinary debug pod.
func TestTheModulesPod(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gpu_fault_xid.ko")
	if err := os.WriteFile(file, kmodtest.File(elf.EM_X86_64, "6.1.0-56-amd64"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change  func(*flags)
		image   string
		memory  string
		through bool
		says    string
	}{
		"kmsg": {nil, "busybox", "", false, "writes to /dev/kmsg"},
		"kmod": {func(f *flags) { f.via = "kmod" }, builderImage, builderMemory, true, builderImage},
		"another image": {
			func(f *flags) { f.via, f.module.builder = "kmod", "mirror/gcc" }, "mirror/gcc", builderMemory, true,
			"mirror/gcc",
		},
		"built already": {
			func(f *flags) { f.via, f.module.path = "kmod", file }, "busybox", "", true, "for kernel 6.1.0-56-amd64",
		},
		"its own images": {
			func(f *flags) { f.via, f.Pods.Image = "kmod", "mirror/sh" }, builderImage, builderMemory, true, "tainted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := parse(t, tc.change, "79", "n")
			if err != nil {
				t.Fatal(err)
			}
			w, err := o.writing(&kube.Connection{LedgerNamespace: "gpu-fault"})
			if err != nil {
				t.Fatal(err)
			}
			spec := w.spec("xid-test", "n")
			if !strings.Contains(spec.Image, tc.image) || spec.Memory != tc.memory {
				t.Errorf("image %s, memory %q; wanted %s, %q", spec.Image, spec.Memory, tc.image, tc.memory)
			}
			module := w.throughModule()
			if (module != nil) != tc.through {
				t.Errorf("through the module: %+v, wanted %v", module, tc.through)
			}
			if text := strings.Join(w.how(), "\n"); !strings.Contains(text, tc.says) ||
				!strings.Contains(text, "cannot be removed") {
				t.Errorf("what is said beforehand lacks %q:\n%s", tc.says, text)
			}
		})
	}
}

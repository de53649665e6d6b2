package cudafault

import (
	"bytes"
	"debug/elf"
	"strings"
	"testing"
)

// Each library is one for its machine, a client reads no C compiler's output at its first use in a cluster.
func TestLibraries(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		for _, layer := range []Layer{LayerDriver, LayerRuntime} {
			data, err := Library(arch, layer)
			if err != nil {
				t.Fatal(err)
			}
			file, err := elf.NewFile(bytes.NewReader(data))
			if err != nil {
				t.Errorf("%s, %s: %v", arch, layer, err)
				continue
			}
			if file.Machine != machine || file.Type != elf.ET_DYN || file.Class != elf.ELFCLASS64 {
				t.Errorf("%s, %s: %s %s %s", arch, layer, file.Machine, file.Type, file.Class)
			}
			if most := 96 << 10; len(data) > most {
				t.Errorf("%s, %s: %d bytes, more than %d", arch, layer, len(data), most)
			}
			sum, err := LibrarySHA256(arch, layer)
			if err != nil || len(sum) != 64 || seen[sum] != "" {
				t.Errorf("%s, %s: hash %s (as %s), %v", arch, layer, sum, seen[sum], err)
			}
			seen[sum] = arch + ", " + string(layer)
		}
	}
}

func TestLibraryRefuses(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"", "s390x", "x86_64", "ppc64le", "../amd64"} {
		if _, err := Library(arch, LayerDriver); err == nil || !strings.Contains(err.Error(), "amd64, arm64") {
			t.Errorf("%q: %v", arch, err)
		}
		if _, err := LibrarySHA256(arch, LayerDriver); err == nil {
			t.Errorf("%q has a hash", arch)
		}
	}
	if _, err := Library("amd64", "kernel"); err == nil || !strings.Contains(err.Error(), "driver, runtime") {
		t.Errorf("layer kernel: %v", err)
	}
}

// The program that makes an error on a GPU is one for its machine, and is small.
func TestCrashProgram(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := CrashProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := file.ImportedLibraries()
		if err != nil || file.Machine != machine || strings.Join(libraries, " ") != "libdl.so.2 libc.so.6" {
			t.Errorf("%s: %s %v, %v", arch, file.Machine, libraries, err)
		}
		if most := 16 << 10; len(data) > most {
			t.Errorf("%s: %d bytes, more than %d", arch, len(data), most)
		}
	}
	if _, err := CrashProgram("s390x"); err == nil {
		t.Error("there is a program for s390x")
	}
}

package packed

import (
	"bytes"
	"testing"
)

// The helper on a node is the one that was built, byte for byte.
func FuzzBranches(f *testing.F) {
	f.Add([]byte{0xe8, 0, 0, 0, 0, 0xe9, 0xfb, 0xff, 0xff, 0xff})
	f.Add(bytes.Repeat([]byte{0xe8, 0, 0xe9, 0xff}, 9)) // calls that overlap
	f.Add([]byte{1, 0, 0, 0x94, 0xff, 0xff, 0xff, 0x97, 0})
	f.Fuzz(func(t *testing.T, program []byte) {
		for _, arch := range []string{"amd64", "arm64", "s390x"} {
			got := bytes.Clone(program)
			Absolute(got, arch)
			Relative(got, arch)
			if !bytes.Equal(got, program) {
				t.Errorf("%s: got % x, want % x", arch, got, program)
			}
		}
	})
}

// Two calls of the same function become equal.
func TestAbsolute(t *testing.T) {
	for arch, program := range map[string][]byte{
		"amd64": {0xe8, 0x0b, 0, 0, 0, 0xe8, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 0xc3},
		"arm64": {3, 0, 0, 0x94, 2, 0, 0, 0x94, 0, 0, 0, 0, 0xc0, 0x03, 0x5f, 0xd6},
	} {
		size := map[string]int{"amd64": 5, "arm64": 4}[arch]
		Absolute(program, arch)
		if first, second := program[:size], program[size:2*size]; !bytes.Equal(first, second) {
			t.Errorf("%s: % x and % x differ", arch, first, second)
		}
	}
}

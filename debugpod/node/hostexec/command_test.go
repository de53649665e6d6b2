package hostexec

import (
	"strings"
	"testing"
)

func TestKept(t *testing.T) {
	t.Parallel()
	first, last := kept{most: 4}, kept{most: 4, last: true}
	for _, w := range []string{"ab", "cd", "ef", "", strings.Repeat("g", 100), "xyz"} {
		for _, k := range []*kept{&first, &last} {
			if n, err := k.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("a short write would stop the program: %d, %v", n, err)
			}
		}
	}
	if first.String() != "abcd" || last.String() != "gxyz" || !first.cut || !last.cut {
		t.Errorf("%q, %q", first.String(), last.String())
	}
}

package cudafault

import (
	"slices"
	"strings"
	"testing"
)

// The lists are the shim's own: a line that cannot be read would be a function of which nothing here knows.
func TestHookListsAreRead(t *testing.T) {
	t.Parallel()
	for layer, name := range hooks {
		text, err := embedded(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "HOOK(") {
				lines++
			}
		}
		if read := len(hookForm.FindAllString(string(text), -1)); read != lines || lines == 0 {
			t.Errorf("%s: %d of %d lines are read", layer, read, lines)
		}
	}
	names := Functions(LayerDriver)
	for _, name := range strings.Fields(
		"cuInit cuMemAlloc cuLaunchKernel cuLaunchKernelEx cuGraphLaunch cuCtxSynchronize cuStreamSynchronize cuMemcpyDtoH cuMemCreate",
	) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not hooked", name)
		}
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "cu") || strings.HasPrefix(name, "cuda") || strings.Contains(name, "_pts") ||
			name == "cuGetExportTable" {
			t.Errorf("%s must not fail", name)
		}
	}
	if got := classesOf("cuMemcpyPeer", LayerDriver); got != ClassCopy|ClassPeer {
		t.Errorf("cuMemcpyPeer is %s", got)
	}
	if got := classesOf("*", LayerRuntime); got&ClassLaunch == 0 || got&ClassInit != 0 {
		t.Errorf("the runtime's layer has %s", got)
	}
}

// As in gf_glob of the shim.
func TestMatchGlob(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true},
		{"", "a", false},
		{"a", "", false},
		{"*", "", true},
		{"*", "anything", true},
		{"cuMem*", "cuMemAlloc", true},
		{"cuMem*", "cuLaunch", false},
		{"*Alloc*", "cuMemAllocAsync", true},
		{"*Async", "cuMemAlloc", false},
		{"a*b*c", "aXbXbXc", true},
		{"a*b*c", "aXbXbX", false},
		{"cu?nit", "cuInit", true},
		{"cu?", "cu", false},
		{"[a-c]x", "bx", true},
		{"[a-c]x", "dx", false},
		{"[!a-c]x", "dx", true},
		{"[^a-c]x", "ax", false},
		{"[]]", "]", true},
		{"[-a]", "-", true},
		{"[a-]", "-", true},
		{"a[", "a[", true},
		{"a[b", "ab", false},
		{"*[0-9]", "rank7", true},
		{"aa", "a", false},
		{"a", "aa", false},
	} {
		if got := matchGlob(test.pattern, test.name); got != test.want {
			t.Errorf("matchGlob(%q, %q) = %v", test.pattern, test.name, got)
		}
	}
	for pattern, want := range map[string]bool{
		"*": true, "[a-z]*": true, "[": false, "a[b": false, "[a][": false, "[]": false, "[!]": false, "[]a]": true,
	} {
		if err := checkGlob(pattern); (err == nil) != want {
			t.Errorf("checkGlob(%q) = %v", pattern, err)
		}
	}
}

func FuzzMatchGlob(f *testing.F) {
	f.Add("cu[A-Z]*_v?", "cuMemAlloc_v2")
	f.Add("[!]]*", "a")
	f.Add("a[b", "a[b")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		fits := matchGlob(pattern, name)
		if err := checkGlob(pattern); err == nil && fits && !matchGlob("*"+pattern+"*", name) {
			t.Fatalf("%q fits %q, and not with stars around it", pattern, name)
		}
		if !strings.ContainsAny(name, "*?[") && !matchGlob(name, name) {
			t.Fatalf("%q does not fit itself", name)
		}
	})
}

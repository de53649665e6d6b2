package house

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wholeFiles are the files of the client that may read a file without a limit, with the reason.
var wholeFiles = map[string]string{
	"pkg/scenario/access/kubeconfig.go": "the kubeconfig's own certificate authority",
	"debugpod/image/archive.go":         "a folder that the program has just written",
}

// TestFilesAreReadWithALimit verifies that the client never reads a file of unknown size into memory: os.ReadFile has
// no limit, so it must use io.LimitReader.
func TestFilesAreReadWithALimit(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if !below(rel, "plugin") && !below(rel, "pkg") && rel != "debugpod" && !below(rel, "debugpod/image") &&
			rel != "cmd/kubectl-gpu_fault" {
			continue
		}
		for _, name := range p.GoFiles {
			file := rel + "/" + name
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(
				[]string{"os.ReadFile(", "ioutil.ReadFile("},
				func(call string) bool { return strings.Contains(string(text), call) },
			) {
				continue
			}
			if seen[file] = true; wholeFiles[file] == "" {
				t.Errorf("%s reads a whole file: read it through io.LimitReader, and refuse what is longer", file)
			}
		}
	}
	for file := range wholeFiles {
		if !seen[file] {
			t.Errorf("%s reads no whole file any more: delete its exception", file)
		}
	}
}

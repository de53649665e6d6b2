package terraform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Only plain files of the folder itself are read, and no more than a lab has.
func TestFolder(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "module")
	source := lab()
	files, err := source.Write()
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFolder(folder); err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFolder(folder); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("written over another: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(folder, ".terraform", "a.tf"), 0o755); err != nil {
		t.Fatal(err)
	}
	module, err := ReadFolder(folder)
	if err != nil || !cmp.Equal(*module, source.Module) {
		t.Errorf("%v %+v", err, module)
	}
	refuses := func(want string) {
		t.Helper()
		if _, err := ReadFolder(folder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	link := filepath.Join(folder, "link.tf")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	refuses("link.tf is not a regular file")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(folder, "large.tf")
	if err := os.WriteFile(large, []byte("#"+strings.Repeat("x", maxText)), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses("128 KiB")
	if err := os.Remove(large); err != nil {
		t.Fatal(err)
	}
	files.Remove(folder)
	refuses("contains no .tf files")
	folder += "-that-is-not-there"
	refuses("no such file")
}

// A module may not bring in what it did not begin with.
func TestWithin(t *testing.T) {
	t.Parallel()
	began := lab().Module
	own := []string{"tenant-a", "shared"}
	if err := began.Within(began, own); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Module){
		`not contain ConfigMap x; supported kinds: Deployment.apps`: func(m *Module) {
			m.Objects = append(m.Objects,
				Object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": Object{"name": "x", "namespace": "shared"}})
		},
		`namespace "kube-system": the namespace must be tenant-a or shared`: func(m *Module) {
			m.Objects = append(m.Objects, policy("kube-system", "x", Object{}))
		},
		`namespace ""`: func(m *Module) {
			m.Objects = append(m.Objects,
				Object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": Object{"name": "x"}})
		},
		"type google_project_iam_binding": func(m *Module) {
			m.Resources["google_project_iam_binding"] = map[string]Body{"x": {}}
		},
	} {
		m := lab().Module
		change(&m)
		if err := m.Within(began, own); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

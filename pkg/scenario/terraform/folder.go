package terraform

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Limits for a module, well above the needs of a lab.
const (
	maxFiles = 50
	maxText  = 128 << 10 // total size of all files, in bytes
)

// ReadFolder reads the module in a directory: its .tf files and, like Terraform, terraform.tfvars and *.auto.tfvars. It
// does not follow links. Errors in the files are Problems.
func ReadFolder(folder string) (*Module, error) {
	files, err := load(folder)
	if err != nil {
		return nil, err
	}
	return Read(files)
}

func load(folder string) (Files, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	files, size := Files{}, 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !ours(name) {
			continue
		}
		if !entry.Type().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file: replace it with a copy of its target",
				filepath.Join(folder, name))
		}
		text, err := loadFile(root, name)
		if err != nil {
			return nil, fmt.Errorf("read module: %w", err)
		}
		if size += len(text); size > maxText || len(files) == maxFiles {
			return nil, fmt.Errorf(
				"the module in %s is too large: the maximum is %s and %d KiB", folder,
				count.Of(maxFiles, "file"), maxText>>10,
			)
		}
		files[name] = text
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s contains no .tf files: specify the directory of the module that `start "+
			"--terraform` wrote", folder)
	}
	return files, nil
}

func loadFile(root *os.Root, name string) ([]byte, error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxText+1))
}

// ours reports whether Terraform would read a file with this name. It excludes backup files of editors.
func ours(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") {
		return false
	}
	return slices.ContainsFunc([]string{".tf", ".tofu", ".tf.json", ".tofu.json"},
		func(ending string) bool { return strings.HasSuffix(name, ending) }) || isValues(name)
}

// isValues reports whether Terraform reads variable values from the file without a command-line option.
func isValues(name string) bool {
	name = strings.TrimSuffix(name, ".json")
	return name == "terraform.tfvars" || strings.HasSuffix(name, ".auto.tfvars")
}

// WriteFolder writes the files to a directory, which must be empty or not exist. If it fails, it removes the files that
// it wrote.
func (f Files) WriteFolder(folder string) (err error) {
	if err := Vacant(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Remove(folder)
		}
	}()
	for name, text := range f {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the files that WriteFolder wrote, and the directory if it is then empty.
func (f Files) Remove(folder string) {
	for name := range f {
		_ = os.Remove(filepath.Join(folder, name))
	}
	_ = os.Remove(folder)
}

// Vacant returns an error if the directory is not empty.
func Vacant(folder string) error {
	entries, err := os.ReadDir(folder)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("directory %s is not empty: specify a new or empty directory", folder)
	}
	return nil
}

package terraform

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a module that is read: beyond all that a lab needs.
const (
	maxFiles = 50
	maxText  = 128 << 10 // of all files together, in bytes
)

// ReadFolder reads the module in a folder: its .tf files, and terraform.tfvars and *.auto.tfvars as Terraform does.
// Links are not followed. Errors in the text are Problems.
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
		return nil, fmt.Errorf("reading a module: %w", err)
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("reading a module: %w", err)
	}
	files, size := Files{}, 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !ours(name) {
			continue
		}
		if !entry.Type().IsRegular() {
			return nil, fmt.Errorf("%s is no plain file: put a copy of what it leads to in its place",
				filepath.Join(folder, name))
		}
		text, err := loadFile(root, name)
		if err != nil {
			return nil, fmt.Errorf("reading a module: %w", err)
		}
		if size += len(text); size > maxText || len(files) == maxFiles {
			return nil, fmt.Errorf(
				"the module in %s has more than %d files, or %d KiB: what it began with had a few KiB", folder,
				maxFiles, maxText>>10,
			)
		}
		files[name] = text
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no .tf files: name the folder that `start --terraform` wrote", folder)
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

// ours reports whether Terraform would read a file of this name. Files of editors are none of it.
func ours(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") {
		return false
	}
	return slices.ContainsFunc([]string{".tf", ".tofu", ".tf.json", ".tofu.json"},
		func(ending string) bool { return strings.HasSuffix(name, ending) }) || isValues(name)
}

// isValues reports whether a file has values of variables that count without being named on a command line.
func isValues(name string) bool {
	name = strings.TrimSuffix(name, ".json")
	return name == "terraform.tfvars" || strings.HasSuffix(name, ".auto.tfvars")
}

// WriteFolder writes the files into a folder, which must not exist yet or be empty. What it wrote is taken away again
// when it fails.
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

// Remove takes away what WriteFolder wrote, and the folder if nothing else is in it.
func (f Files) Remove(folder string) {
	for name := range f {
		_ = os.Remove(filepath.Join(folder, name))
	}
	_ = os.Remove(folder)
}

// Vacant refuses a folder that has something in it.
func Vacant(folder string) error {
	entries, err := os.ReadDir(folder)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s has files in it: name a folder that does not exist yet, or an empty one", folder)
	}
	return nil
}

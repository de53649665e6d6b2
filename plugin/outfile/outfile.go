// Package outfile writes the files that users name in flags.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Write writes a file atomically, readable by its owner only, and says so on talk. It replaces what has the name, and
// never follows a link: somebody else may be able to write in the folder.
func Write(talk io.Writer, flag, file string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".gpu-fault-*")
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	err = errors.Join(write(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s %s was not written: %w", flag, file, err), os.Remove(f.Name()))
	}
	printer.Talk(talk, "%s written", file)
	return nil
}

// Check returns an error if Write could not write the file. A command calls it before it does what the file reports.
func Check(flag, file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s: %s is a directory", flag, file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".gpu-fault-*")
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Package outfile writes the files that users specify in flags.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Check returns an error if a file cannot be written. Commands call it before they change anything, so that a report is
// not lost.
func Check(flag, file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Lstat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s %s: is a directory; specify a file", flag, file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".gpu-fault-*")
	if err != nil {
		return fmt.Errorf("%s %s cannot be written: %w", flag, file, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Write writes a file atomically, readable only by its owner, and reports this in a message to the writer talk. It
// replaces an existing file, and never follows a link, because other users may be able to write to the directory.
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

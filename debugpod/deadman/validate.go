package deadman

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

const (
	// MaxFile is the maximum size of a changed file in bytes.
	MaxFile  = 4 << 20
	maxFiles = 100
	// minTTL gives the service time to restart before the restore.
	minTTL = time.Second
)

// runNames matches run IDs that are safe in the names of a directory, a unit and a process.
var runNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// units matches service names that systemctl cannot mistake for an option.
var units = regexp.MustCompile(`^[A-Za-z0-9@_][A-Za-z0-9@_:.\\-]*\.service$`)

// ValidRun returns an error if a run ID is not safe to use on a node.
func ValidRun(run string) error {
	if !runNames.MatchString(run) {
		return fmt.Errorf("invalid run ID %q", run)
	}
	return nil
}

// Validate returns an error if the change is malformed. It does not access the node.
func (c Change) Validate() error {
	if len(c.Files) == 0 {
		return errors.New("no file is specified")
	}
	if err := validateFiles(c.Files); err != nil {
		return err
	}
	switch {
	case c.TTL != 0 && c.TTL < minTTL:
		return fmt.Errorf("the TTL %v is shorter than %v", c.TTL, minTTL)
	case c.MayFail && c.TTL == 0:
		// Without its runtime, the kubelet can neither run commands in pods nor stop pods, so no client could request
		// the restore.
		return errors.New("a change that may stop the service requires a TTL")
	case c.MayFail && (c.Service == nil || c.NoRestart):
		return errors.New("the service is expected to fail, but no service is specified")
	}
	return c.Service.validate()
}

func validateFiles(files []File) error {
	if len(files) > maxFiles {
		return fmt.Errorf("too many files: %d, but the maximum is %d", len(files), maxFiles)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f.Path] {
			return fmt.Errorf("%s: specified twice", f.Path)
		}
		seen[f.Path] = true
		if err := f.validate(); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

func (f File) validate() error {
	switch {
	case !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.ContainsAny(f.Path, "\x00\n"):
		return fmt.Errorf("%q is not an absolute, clean path", f.Path)
	case !isSum(f.Before) || !isSum(f.After):
		return errors.New("a checksum is not a hexadecimal SHA-256 digest")
	case f.Before == f.After:
		return errors.New("the file would not change")
	case f.Before == Absent && f.Meta != nil:
		return errors.New("attributes are specified for a file that did not exist")
	}
	at := 0
	for _, e := range f.Edits {
		if e.Offset < at || e.Offset > MaxFile {
			return errors.New("the edits are not in ascending order")
		}
		at = e.Offset + len(e.Old)
	}
	return nil
}

func isSum(sum string) bool {
	if sum == Absent {
		return true
	}
	raw, err := hex.DecodeString(sum)
	return err == nil && len(raw) == 32 && sum == strings.ToLower(sum)
}

func (s *Service) validate() error {
	switch {
	case s == nil:
		return nil
	case !units.MatchString(s.Unit):
		return fmt.Errorf("%q is not the name of a service unit", s.Unit)
	case !path.IsAbs(s.Socket) || path.Clean(s.Socket) != s.Socket:
		return fmt.Errorf("the socket %q is not an absolute, clean path", s.Socket)
	}
	return nil
}

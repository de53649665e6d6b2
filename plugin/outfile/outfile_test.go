package outfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A link that somebody planted is replaced and not followed, the file is its owner's, and a failure leaves nothing.
func TestWrite(t *testing.T) {
	t.Parallel()
	text := func(w io.Writer) error {
		_, err := io.WriteString(w, "new")
		return err
	}
	for name, plant := range map[string]func(precious, path string) error{"link": os.Symlink, "hard link": os.Link} {
		dir := t.TempDir()
		precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "out")
		if err := errors.Join(os.WriteFile(precious, []byte("mine"), 0o644), plant(precious, path)); err != nil {
			t.Fatal(err)
		}
		err := Write(io.Discard, "--html", path, text)
		kept, _ := os.ReadFile(precious)
		info, statErr := os.Lstat(path)
		if err != nil || statErr != nil || string(kept) != "mine" || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v, %q, %v", name, err, statErr, kept, info.Mode())
		}
	}
	dir := t.TempDir()
	failed := errors.New("failed")
	err := Write(io.Discard, "--html", filepath.Join(dir, "out"), func(io.Writer) error { return failed })
	if left, _ := os.ReadDir(dir); !errors.Is(err, failed) || len(left) > 0 {
		t.Errorf("%v, %v", err, left)
	}
}

// A file that cannot be written is refused before a command changes anything, and the check leaves nothing behind.
func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Check("--html", filepath.Join(dir, "out")); err != nil {
		t.Error(err)
	}
	for _, file := range []string{dir, filepath.Join(dir, "missing", "out")} {
		if err := Check("--html", file); err == nil {
			t.Errorf("%s was accepted", file)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

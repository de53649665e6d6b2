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

// A file that cannot be written is refused before the experiment that it reports, and checking leaves nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, ok := range map[string]bool{
		"": true, filepath.Join(dir, "out"): true, dir: false, filepath.Join(dir, "missing", "out"): false,
	} {
		if err := Check("--html", path); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v", left)
	}
}

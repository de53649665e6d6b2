package snapshot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestASnapshotWithoutKindIsThere: a snapshot.json that does not say what it is was once called absent.
func TestASnapshotWithoutKindIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(
		filepath.Join(dir, "snapshot.json"), []byte(`{"apiVersion":"`+APIVersion+`"}`), 0o600,
	); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir)
	if err == nil || !strings.Contains(err.Error(), "snapshot.json") || !strings.Contains(err.Error(), "missing kind") {
		t.Errorf("%v: wanted it to say what snapshot.json lacks", err)
	}
}

// TestCutKeepsRunesWhole: names of members are anybody's, in any script.
func TestCutKeepsRunesWhole(t *testing.T) {
	t.Parallel()
	for shift := range 3 {
		if text := cut(strings.Repeat("x", shift) + strings.Repeat("界", 100)); !utf8.ValidString(text) {
			t.Errorf("%q is no text", text)
		}
	}
}

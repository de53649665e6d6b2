package runtime

import (
	"strings"
	"testing"
	"time"
)

func FuzzVersionIn(f *testing.F) {
	f.Add("NVIDIA Container Runtime version 1.17.8\ncommit: 1.2.3")
	f.Add("v1.17.5-ubuntu20.04")
	f.Fuzz(func(t *testing.T, text string) {
		if version := versionIn(text); version != "" &&
			(versionBefore(version, version) || strings.Count(version, ".") != 2) {
			t.Errorf("%q: %q is no version", text, version)
		}
	})
}

func FuzzJournalTime(f *testing.F) {
	f.Add("2026-01-01T11:53:00+0000 gpu-1 systemd[1]: x")
	f.Fuzz(func(t *testing.T, line string) {
		if at, ok := journalTime(line); ok && at.Equal(time.Time{}) && !strings.HasPrefix(line, "0001") &&
			!strings.HasPrefix(line, "0000") {
			t.Errorf("%q has no time", line)
		}
	})
}

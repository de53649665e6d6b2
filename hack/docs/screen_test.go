package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
)

// TestDoctorScreen protects the example in docs/doctor.md: its lines are in the output of doctor for this incident, in
// this order. A line "..." stands for any number of lines.
func TestDoctorScreen(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "    $ kubectl gpu-fault doctor --from-bundle two-containerds.tar.gz\n")
	if !found {
		t.Fatal("docs/doctor.md has no example of doctor --from-bundle two-containerds.tar.gz")
	}
	archive, err := txtar.ParseFile("../../pkg/doctor/testdata/positive/runtime-two-containerds.txtar")
	if err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	meta := txtar.File{
		Name: "snapshot.json",
		Data: []byte(`{"apiVersion": "gpufault.dev/v1alpha1", "kind": "Snapshot", "created": "2026-01-01T12:00:00Z"}`),
	}
	for _, file := range append(archive.Files, meta) {
		path := filepath.Join(bundle, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	command := plugin.NewCommand(streams)
	command.SetArgs([]string{"doctor", "--from-bundle", bundle, "--fail-on", "never"})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := out.String()
	for line := range strings.Lines(after) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "    ") {
			break // the end of the example
		}
		line = strings.TrimPrefix(line, "    ")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed == "..." {
			continue
		}
		_, rest, found = strings.Cut(rest, line)
		if !found {
			t.Fatalf("doctor does not print this line of docs/doctor.md there:\n%s\nIts output is:\n%s", line, out)
		}
	}
}

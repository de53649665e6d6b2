package exercise

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// A program sees its task and not the trainer's cluster; when its time is over it is stopped with all that it began;
// what it wrote counts.
func TestRunProgram(t *testing.T) {
	t.Setenv("KUBECONFIG", "/trainer")
	t.Setenv("KUBECTL_GPU_FAULT_X", "y")
	folder := t.TempDir()
	e := &Exercise{
		Public:     scenario.Public{Title: "The page", Access: scenario.Access{Namespaces: []string{"team"}}},
		Kubeconfig: []byte("candidate's"), Until: noon,
	}
	files, err := writeTask(folder, e, e.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	command :=
		`env | grep -c -e GPU_FAULT -e /trainer; cat "$KUBECONFIG" "$TASK_CARD"; echo '{"component":"workload"}' >"$TASK_DIAGNOSIS"; exit 3`
	if code := runProgram(t.Context(), folder, files, AgentOptions{Command: command, Output: &output}); code != 3 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		"| 0\n| candidate's{", `|   "schemaVersion": 1`, `"title": "The page"`, `"deadline": "2026-05-04T12:00:00Z"`,
		files.diagnosis,
	} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("%q lacks %q", output.String(), want)
		}
	}
	if diagnosis, err := readDiagnosis(files.diagnosis); err != nil || diagnosis.Component != "workload" {
		t.Errorf("%+v, %v", diagnosis, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if code := runProgram(
		ctx, folder, files, AgentOptions{Command: "sleep 60 & sleep 60; echo late", Output: &output},
	); code != -1 || time.Since(began) > 4*time.Second {
		t.Errorf("exit code %d after %s", code, time.Since(began))
	}
}

// Who writes nothing has no diagnosis, and who writes something else is told.
func TestReadDiagnosis(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"": "", " \n": "", `{"cause":"x"}`: `read diagnosis: unknown field "cause"`,
	} {
		path := filepath.Join(t.TempDir(), "d")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		diagnosis, err := readDiagnosis(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || diagnosis != nil {
			t.Errorf("%.20q: %+v, %v", content, diagnosis, err)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe") // which would be waited for
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{pipe, "/dev/zero", t.TempDir()} {
		if diagnosis, err := readDiagnosis(other); diagnosis != nil || err == nil ||
			!strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %+v, %v", other, diagnosis, err)
		}
	}
	if diagnosis, err := readDiagnosis("/nowhere/at/all"); diagnosis != nil || err != nil {
		t.Errorf("%+v, %v", diagnosis, err)
	}
}

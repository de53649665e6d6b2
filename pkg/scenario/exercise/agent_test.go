package exercise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func TestMain(m *testing.M) {
	if code, is := sandbox.First(os.Args, os.Stdout, os.Stderr); is {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// A program sees its task and not the trainer's variables, files and processes; when its time is over it is stopped
// with all that it began; what it wrote counts.
func TestRunProgram(t *testing.T) {
	t.Setenv("KUBECONFIG", "/trainer")
	t.Setenv("KUBECTL_GPU_FAULT_X", "y")
	t.Setenv("MODEL_KEY", "for the agent")
	e := &Exercise{
		Public:     scenario.Public{Title: "The page", Access: scenario.Access{Namespaces: []string{"team"}}},
		Kubeconfig: []byte("candidate's"), Until: noon,
	}
	for name, isolation := range map[string]Isolation{
		"sandbox": {Dir: t.TempDir(), Env: []string{"MODEL_KEY"}}, "none": {Off: true},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func() (*place, []string) {
				place, err := newPlace(isolation)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := place.remove(); err != nil {
						t.Error(err)
					}
				})
				variables, err := writeTask(place, e, e.Kubeconfig)
				if err != nil {
					t.Fatal(err)
				}
				return place, variables
			}
			place, variables := begin()
			var output strings.Builder
			command := `env | grep -c -e GPU_FAULT -e /trainer; echo $MODEL_KEY; cat "$KUBECONFIG" "$TASK_CARD"
echo '{"component":"workload"}' >"$TASK_DIAGNOSIS"; echo '{"model":"m","inputTokens":12,"costUSD":0.5}' >"$TASK_USAGE"; exit 3`
			if ran, err := place.run(t.Context(), command, variables, &output); err != nil || ran.Exit != 3 {
				t.Errorf("%+v, %v", ran, err)
			}
			for _, want := range []string{
				"| 0\n| for the agent\n| candidate's{", `|   "schemaVersion": 1`, `"title": "The page"`,
				`"deadline": "2026-05-04T12:00:00Z"`, place.seen + "/diagnosis.json",
			} {
				if !strings.Contains(output.String(), want) {
					t.Errorf("%q lacks %q", output.String(), want)
				}
			}
			if diagnosis, err := readDiagnosis(place.own); err != nil || diagnosis.Component != "workload" {
				t.Errorf("%+v, %v", diagnosis, err)
			}
			if usage, err := readUsage(place.own); err != nil ||
				*usage != (Usage{Model: "m", InputTokens: 12, CostUSD: 0.5}) {
				t.Errorf("%+v, %v", usage, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			place, variables = begin()
			ran, err := place.run(ctx, "sleep 60 & sleep 60; echo late", variables, &output)
			if err != nil || ran.Exit != -1 || ran.Took > 4*time.Second {
				t.Errorf("%+v, %v", ran, err)
			}
		})
	}
}

// A program in the sandbox reaches the API server through the recorder, and neither the trainer's nor any other
// server of the machine.
func TestProgramNetwork(t *testing.T) {
	t.Parallel()
	trainers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "trainer's")
	}))
	defer trainers.Close()
	model := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "model's")
	}))
	defer model.Close()
	hosts, err := sandbox.ParseHosts([]string{model.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	place, err := newPlace(Isolation{Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = place.remove() }()
	api := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "api") }),
	}
	go func() { _ = api.Serve(place.listener()) }()
	var output strings.Builder
	ran, err := place.run(t.Context(), fmt.Sprintf("curl -s http://%s; curl -s -m 2 %s || echo -n no; "+
		"curl -sk --noproxy '' --proxy $HTTPS_PROXY %s", place.listener().Addr(), trainers.URL, model.URL), nil,
		&output)
	if err != nil || output.String() != "| apinomodel's\n" {
		t.Errorf("%+v, %v: %q", ran, err, output.String())
	}
}

// A trajectory holds no credentials that a program had in its arguments.
func TestTrajectory(t *testing.T) {
	t.Parallel()
	got := trajectory(&Exercise{ID: "e1"}, Try{Scenario: "s"},
		AgentOptions{Command: "./agent --api-key=sk-ant-0123456789abcdef0123456789"}, noon,
		sandbox.Result{Ran: []sandbox.Ran{
			{Args: []string{"curl", "-H", "Authorization: Bearer 0123456789abcdefghijkl", "https://x"}},
		}}, nil)
	text, err := json.Marshal(got)
	if err != nil || strings.Contains(string(text), "0123456789") || !strings.Contains(string(text), `"curl"`) ||
		!strings.Contains(string(text), `"requests":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

// Who writes nothing has no diagnosis, and who writes something else is told.
func TestReadDiagnosis(t *testing.T) {
	t.Parallel()
	write := func(name, content string) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for content, want := range map[string]string{
		"": "", " \n": "", `{"cause":"x"}`: `read diagnosis: unknown field "cause"`,
	} {
		diagnosis, err := readDiagnosis(write(diagnosisFile, content))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || diagnosis != nil {
			t.Errorf("%.20q: %+v, %v", content, diagnosis, err)
		}
	}
	for _, content := range []string{"", "[]", `{"tokens":1}`, `{"inputTokens":-1}`, `{"costUSD":1e999}`} {
		if usage, err := readUsage(write(usageFile, content)); err == nil || usage != nil {
			t.Errorf("%q: %+v, %v", content, usage, err)
		}
	}
	secret := write("secret", `{"component":"workload"}`)
	for name, make := range map[string]func(path string) error{
		"a pipe":           func(path string) error { return exec.Command("mkfifo", path).Run() },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"a device":         func(path string) error { return os.Symlink("/dev/zero", path) },
		"another's file":   func(path string) error { return os.Symlink(filepath.Join(secret, "secret"), path) },
		"a relative link":  func(path string) error { return os.Symlink("../../../../../../../../etc/hostname", path) },
		"a link to itself": func(path string) error { return os.Symlink(diagnosisFile, path) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, diagnosisFile)); err != nil {
			t.Fatal(err)
		}
		if diagnosis, err := readDiagnosis(dir); diagnosis != nil || err == nil {
			t.Errorf("%s: %+v, %v", name, diagnosis, err)
		}
	}
	if diagnosis, err := readDiagnosis(t.TempDir()); diagnosis != nil || err != nil {
		t.Errorf("%+v, %v", diagnosis, err)
	}
}

//go:build e2e && scenario

package exercise

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// A program that mends it, by the candidate's kubeconfig alone, passes; one that does nothing does not; one that goes
// on for ever is stopped.
func TestE2EAgents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parsed := s.parsed(own(t)...)
	var tries []Try
	folder := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var trajectories []Trajectory
	report, err := s.lab("laptop").Agents(t.Context(), AgentOptions{
		Scenarios: []*scenario.Scenario{parsed}, Repeats: 2, Seed: 1, Timeout: 10 * time.Minute, Record: folder,
		Isolation: Isolation{Dir: filepath.Dir(program)}, Output: logger{t},
		Command:    fmt.Sprintf("cat /nowhere; HELPER_AGENT=1 %q -test.run ^TestE2EHelperAgent$ -test.v", program),
		Trajectory: func(t Trajectory) error { trajectories = append(trajectories, t); return nil },
	}, func(try Try) { tries = append(tries, try) })
	if err != nil || report.Tries != 2 || report.Passed != 2 || len(tries) != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	if try := tries[0]; try.Exit != 0 || try.Note != "" || try.Score != 100 || try.Report.Recorded.Changes != 1 ||
		try.Report.Recorded.Look == 0 {
		t.Errorf("%+v: %+v", try, try.Report)
	}
	if written, err := filepath.Glob(filepath.Join(folder, "missing-settings-scenario-*.jsonl")); err != nil ||
		len(written) != 2 {
		t.Errorf("transcripts: %q, %v", written, err)
	}
	for _, told := range trajectories {
		failed := slices.ContainsFunc(told.Commands, func(r sandbox.Ran) bool {
			return slices.Equal(r.Args, []string{"cat", "/nowhere"}) && r.Exit == 1
		})
		if !failed || !told.Isolated || len(told.Requests) < 2 || !told.Passed || told.Usage.OutputTokens != 7 {
			t.Errorf("%+v", told)
		}
	}
	if len(trajectories) != 2 {
		t.Errorf("%d trajectories", len(trajectories))
	}
	report, err = s.lab("laptop").Agents(t.Context(), AgentOptions{
		Scenarios: []*scenario.Scenario{parsed}, Seed: 1, Timeout: 5 * time.Second,
		Command: "echo '{' >\"$TASK_DIAGNOSIS\"; sleep 600", Output: logger{t},
	}, nil)
	if err != nil || report.Tries != 1 || report.Passed != 0 || report.All[0].Outcome() != "timed out" ||
		!strings.Contains(report.All[0].Note, "read diagnosis") {
		t.Errorf("%+v, %v", report, err)
	}
}

type logger struct{ *testing.T }

func (l logger) Write(p []byte) (int, error) { l.Logf("%s", p); return len(p), nil }

// TestE2EHelperAgent is the program of TestE2EAgents: it reads its card, mends, and writes its diagnosis.
func TestE2EHelperAgent(t *testing.T) {
	if os.Getenv("HELPER_AGENT") == "" {
		return
	}
	card, err := os.ReadFile(os.Getenv(EnvCard))
	if err != nil || !strings.Contains(string(card), "The page does not come up") {
		t.Fatalf("%s, %v", card, err)
	}
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(),
		nil)
	namespace, _, err := loading.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	config, err := loading.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	deployment, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "page", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := deployment.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name
	patch := fmt.Appendf(nil,
		`[{"op":"replace","path":"/spec/template/spec/containers/0/envFrom/0/configMapRef/name","value":%q}]`,
		strings.TrimSuffix(asked, "-v2"))
	if _, err := client.AppsV1().Deployments(namespace).Patch(
		t.Context(), "page", types.JSONPatchType, patch, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	diagnosis :=
		`{"component":"Workload","object":"deployment/page","field":"spec.template.spec.containers.envFrom","mechanism":"missing ConfigMap","explanation":"x"}`
	if err := os.WriteFile(os.Getenv(EnvDiagnosis), []byte(diagnosis), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv(EnvUsage), []byte(`{"model":"m","outputTokens":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
}

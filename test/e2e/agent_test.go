//go:build e2e && scenario

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
)

// repair is what an agent without a model does: it knows one scenario by heart.
const repair = `set -e
PATH=$PWD:$PATH
kubectl get deployments -o name >/task/found
kubectl patch "$(cat /task/found)" --type=json -p \
  '[{"op":"replace","path":"/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu","value":1}]'
kubectl rollout status "$(cat /task/found)" --timeout=60s
cat "$TRAINERS" || true
printf '{"component":"scheduler","object":"%s"}' "$(cat /task/found)" >"$TASK_DIAGNOSIS"
echo '{"model":"none","steps":4,"costUSD":0}' >"$TASK_USAGE"
`

// An agent of a real command line solves an exercise in its sandbox, with the candidate's rights alone; what it did is
// written down.
func TestE2EScenarioAgent(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	e.cluster.Trainer(t)
	record := t.TempDir()
	t.Setenv("TRAINERS", e.cluster.Kubeconfig)
	e.ok("scenario", "run", "gpu-resources", "--set", "kind=count", "--agent", repair,
		"--agent-dir", filepath.Dir(binary(t, "kubectl")), "--agent-env", "TRAINERS", "--record", record, "--yes",
		"--allow-control-plane", "--allow-majority", "--allow-last-gpu-node")
	found, err := filepath.Glob(filepath.Join(record, "gpu-resources-*.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var told exercise.Trajectory
	if err := json.Unmarshal(text, &told); err != nil {
		t.Fatal(err)
	}
	commands := map[string]int{} // by their lines
	for _, c := range told.Commands {
		commands[strings.Join(c.Args, " ")] = c.Exit
	}
	if exit, is := commands["cat "+e.cluster.Kubeconfig]; !is || exit == 0 {
		t.Errorf("the agent could read the trainer's kubeconfig, or was not seen to try: %v", commands)
	}
	if exit, is := commands["kubectl get deployments -o name"]; !is || exit != 0 || !told.Passed || !told.Isolated ||
		told.Usage == nil || told.Usage.Steps != 4 || len(told.Requests) < 3 {
		t.Errorf("%+v", told)
	}
	if page, err := os.ReadFile(strings.TrimSuffix(found[0], ".json") + ".html"); err != nil ||
		!strings.Contains(string(page), "kubectl get deployments -o name") {
		t.Errorf("%v: the page lacks the commands", err)
	}
}

// The adapter of docs/examples plays a scenario as another harness would.
func TestE2EHarnessAdapter(t *testing.T) {
	e := setup(t)
	e.cluster.Addons(t)
	e.cluster.Trainer(t)
	dir := t.TempDir()
	kubectl := "#!/bin/sh\nshift\nexec " + binary(t, "kubectl-gpu_fault") + ` "$@"` + "\n"
	program := `
import json, sys
sys.path.insert(0, sys.argv[1])
from gpu_fault_problem import GPUFaultProblem
p = GPUFaultProblem("noop", 1, sys.argv[2], ["--allow-control-plane"])
p.inject_fault()
wrong = p.diagnosis_oracle.evaluate({"component": "network"})
right = p.diagnosis_oracle.evaluate({"component": "none", "mechanism": "nothing-is-broken", "object": "none", "field": "none"})
fixed = p.mitigation_oracle.evaluate()
title = p.card["title"]
p.recover_fault()
print(json.dumps([wrong, right, fixed, title, p.root_cause is not None]))
`
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../docs/examples")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", program, examples, filepath.Join(dir, "kubeconfig"))
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+e.cluster.Kubeconfig,
		"PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, err.(*exec.ExitError).Stderr)
	}
	t.Logf("%s", out)
	if !strings.HasPrefix(string(out), `[{"success": false`) ||
		!strings.Contains(string(out), `{"success": true, "fields"`) ||
		!strings.Contains(string(out), `{"success": true, "score"`) {
		t.Errorf("%s", out)
	}
}

package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// command runs `scenario ARGS` without a cluster.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	cmd := NewCommand(kube.NewConnection(streams), streams)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// What candidates may be shown has nothing of the answer, in any format.
func TestTheAnswerIsNotShown(t *testing.T) {
	t.Parallel()
	all, err := scenario.Builtin()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d scenarios, %v", len(all), err)
	}
	for _, s := range all {
		for _, format := range []string{"", "wide", "json", "yaml"} {
			args := []string{"show", s.Metadata.Name}
			if format != "" {
				args = append(args, "-o", format)
			}
			shown, _, err := command(t, args...)
			if err != nil || !strings.Contains(shown, s.Public.Title) {
				t.Errorf("%v: %v: %s", args, err, shown)
			}
			for _, secret := range []string{
				s.Sealed.Story, s.Sealed.RootCause.Field.Value, s.Sealed.RootCause.Object.Value, "rootCause",
				"wrongFixes", "inject",
			} {
				if len(secret) > 8 && strings.Contains(shown, secret) { // "gpu" tells nothing
					t.Errorf("%v tells %q", args, secret)
				}
			}
		}
	}
	listed, _, err := command(t, "list", "-o", "json")
	if err != nil || strings.Contains(listed, "sealed") || strings.Contains(listed, "rootCause") {
		t.Errorf("list: %v: %s", err, listed)
	}
	var list publicList
	if err := json.Unmarshal([]byte(listed), &list); err != nil || len(list.Items) != len(all) {
		t.Errorf("list has %d of %d scenarios: %v", len(list.Items), len(all), err)
	}
}

// What is wrong on the command line is said before anything is asked of a cluster.
func TestBadInput(t *testing.T) {
	t.Parallel()
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "main.tf")
	if err := os.WriteFile(broken, []byte("data \"google_project\" \"x\" {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"start"}, "specify a scenario"},
		{[]string{"start", "gpu-resorces"}, "gpu-resources"},
		{[]string{"start", "gpu-resources", "--file", "x.yaml"}, "cannot be used together"},
		{[]string{"start", "gpu-resources", "--identity", "x"}, "requires --file"},
		{[]string{"start", "gpu-resources", "--for", "1m"}, "10m to 24h"},
		{[]string{"start", "gpu-resources", "--kubeconfig-out", taken}, "exists"},
		{[]string{"start", "gpu-resources", "--dry-run=maybe"}, "supported values: none, client, server"},
		{[]string{"start", "gpu-resources", "--simulate-gpus", "0"}, "0 for --simulate-gpus: must be 1 to 16"},
		{[]string{"selftest", "gpu-resources", "--simulate-gpus", "17"}, "17 for --simulate-gpus: must be 1 to 16"},
		{[]string{"run", "noop", "--agent", "true", "--simulate-gpus", "-1"},
			"-1 for --simulate-gpus: must be 1 to 16"},
		{[]string{"start", "--file", filepath.Join(t.TempDir(), "none.yaml")}, "none.yaml"},
		{
			[]string{"start", "gpu-memory", "--terraform", filepath.Join(t.TempDir(), "new")},
			"gpu-memory has no Terraform module; scenarios with a module: blocked-egress, wrong-role-binding",
		},
		{[]string{"start", "blocked-egress", "--terraform", filepath.Dir(taken)}, "is not empty"},
		{[]string{"start", "blocked-egress", "--terraform", taken}, "not a directory"},
		{[]string{"submit", "--terraform", t.TempDir()}, "contains no .tf files"},
		{[]string{"submit", "--terraform", filepath.Dir(broken)}, "main.tf:1:1: data blocks are not supported"},
		{[]string{"grade", "a", "b"}, "one exercise"},
		{[]string{"run", "noop"}, "--agent"},
		{[]string{"run", "noop", "--agent", "true", "--repeats", "0"}, "0 for --repeats"},
		{[]string{"export", "noop"}, "--recipient"},
		{[]string{"export", "noop", "--recipient", "ssh-rsa"}, "age1"},
		{[]string{"selftest"}, "specify a scenario"},
		{[]string{"selftest", "--all", "noop"}, "--all cannot be used with"},
		{[]string{"sart"}, "start"},
	} {
		if _, _, err := command(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("scenario %v: %v; wanted %q", test.args, err, test.want)
		}
	}
}

// lint's exit code is for scripts, and its lines are for editors: FILE:LINE:COLUMN.
func TestLint(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	bad := filepath.Join(folder, "bad.yaml")
	if err := os.WriteFile(
		bad, []byte("apiVersion: gpufault.dev/v1alpha1\nkind: Scenario\nmetadata: {nmae: x}\n"), 0o600,
	); err != nil {
		t.Fatal(err)
	}
	out, _, err := command(t, "lint", bad)
	if !errors.As(err, new(*usage.Verdict)) || !strings.Contains(out, bad+":3:") || !strings.Contains(out, "nmae") {
		t.Errorf("%v: %s", err, out)
	}
	if _, _, err := command(t, "lint", filepath.Join(folder, "none.yaml")); err == nil ||
		errors.As(err, new(*usage.Verdict)) {
		t.Errorf("a file that is not there: %v", err)
	}
	if out, said, err := command(t, "lint", "../../pkg/scenario/packs/noop.yaml"); err != nil {
		t.Errorf("a scenario of ours: %v: %s%s", err, out, said)
	}
}

// A sealed file is for who has the key: others read the public half, and cannot start it.
func TestExport(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "sealed.yaml")
	// The key is of this test, and of nothing else.
	const recipient = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"
	if _, _, err := command(t, "export", "gpu-memory", "--recipient", recipient, "--out", file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := scenario.Find("gpu-memory")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(s.Sealed.RootCause.Field.Value)) || !bytes.Contains(data, []byte(s.Public.Title)) {
		t.Error("the file tells the answer, or lacks the public half")
	}
	if _, _, err := command(t, "start", "--file", file); err == nil || !strings.Contains(err.Error(), "--identity") {
		t.Errorf("start without the key: %v", err)
	}
	if _, _, err := command(t, "export", "gpu-memory", "--recipient", recipient, "--out", file); err == nil {
		t.Error("export writes over a file that exists")
	}
}

// Expressions are drawn when a scenario starts: until then nobody reads their source.
func TestUndrawn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"in ${p.ns}, since ${p.day}.": "in ..., since ....", "nothing": "nothing", "${open": "${open", "": "",
	} {
		if got := undrawn(text); got != want {
			t.Errorf("%q is %q, wanted %q", text, got, want)
		}
	}
}

// The candidate's kubeconfig is for nobody else, and takes no file's place.
func TestWriteNew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := writeNew(file, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := writeNew(file, []byte("y")); err == nil {
		t.Error("it took a file's place")
	}
}

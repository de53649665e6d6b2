package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// execute runs doctor where there is no cluster and no kubeconfig.
func execute(t *testing.T, args ...string) (out, errOut string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	connection := kube.NewConnection(streams)
	none := filepath.Join(t.TempDir(), "no-kubeconfig")
	connection.KubeConfig = &none
	cmd := NewCommand(connection, streams)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// bundleOf writes a snapshot.
func bundleOf(t *testing.T, s snapshot.Snapshot) string {
	t.Helper()
	s.Meta = snapshot.Meta{
		APIVersion: snapshot.APIVersion, Kind: snapshot.Kind, Created: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		APIOnly: true,
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	var raw bytes.Buffer
	if err := snapshot.Write(&raw, &s); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func noGPUs(t *testing.T) string {
	return bundleOf(t,
		snapshot.Snapshot{Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "cpu-1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}}})
}

// A command line that makes no sense is refused before anything is read, started or written, with words that help.
func TestCommandLinesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"--bundle and --from-bundle are mutually exclusive": {"--bundle", "a", "--from-bundle", "b"},
		"--from-bundle reads no nodes":                      {"--from-bundle", "b", "--api-only"},
		"--api-only are mutually exclusive":                 {"gpu-1", "--api-only"},
		"node names, -l, --all-gpu-nodes":                   {"--all-gpu-nodes", "-l", "a=b"},
		"the selector is empty":                             {"-l", ""},
		"node name is empty":                                {""},
		"--fail-on=info":                                    {"--fail-on", "info"},
		"--min-severity=bad":                                {"--min-severity", "bad"},
		"which hides warnings":                              {"--min-severity", "error", "--fail-on", "warning"},
		"unknown output format":                             {"-o", "xml"},
		"does not exist":                                    {"--html", filepath.Join(dir, "no", "x.html")},
		"is a directory":                                    {"--html", dir},
		"specify the same file":                             {"--html", "x", "--bundle", "./x"},
		"--yes requires --fix":                              {"--yes"},
		"--dry-run requires --fix":                          {"--dry-run=client"},
		"--fix requires a cluster":                          {"--fix", doctor.Checks()[0].ID, "--from-bundle", "x"},
		"object name is empty":                              {"--fix", "rc.handler-mismatch="},
		"--since":                                           {"--since", "-3s"},
		"--allow-unknown requires --fail-on":                {"--allow-unknown"},
		"0 for --parallel":                                  {"--parallel", "0"},
		"unknown check \"foo\"":                             {"--checks", "foo"},
		"did you mean " + doctor.Checks()[0].ID:             {"--checks", doctor.Checks()[0].ID + "x"},
		"an ID is empty":                                    {"--checks", ""},
		"--ignore-file":                                     {"--ignore-file", filepath.Join(dir, "none.yaml")},
		"must be at most 1048576 bytes": {
			"--ignore-file", "/dev/zero", "--from-bundle", filepath.Join(dir, "none.tar.gz"),
		},
		"no such file":               {"--from-bundle", filepath.Join(dir, "none.tar.gz")},
		"requires the ID of a check": {"explain"},
		"takes no arguments":         {"checks", "x"},
	} {
		out, _, err := execute(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("doctor %q: %v; wanted %q", args, err, want)
		}
		if out != "" || errors.As(err, new(*usage.Verdict)) {
			t.Errorf("doctor %q printed %q, and its error is a verdict", args, out)
		}
	}
}

// A cluster without GPUs is no problem, and needs neither a cluster nor a kubeconfig when it comes in a bundle.
func TestNoGPUsFromABundle(t *testing.T) {
	t.Parallel()
	out, _, err := execute(t, "--from-bundle", noGPUs(t))
	if err != nil || !strings.HasPrefix(out, "no NVIDIA GPUs: ") || strings.Contains(out, "\x1b") {
		t.Errorf("%v, printed:\n%s", err, out)
	}
	for _, format := range []string{"json", "yaml", "name", "wide", "junit", "sarif", "jsonpath={.kind}"} {
		if _, _, err := execute(t, "--from-bundle", noGPUs(t), "-o", format); err != nil {
			t.Errorf("-o %s: %v", format, err)
		}
	}
}

// TestFailOnFailsClosed: a gate does not open because nobody could look. Without --fail-on, doctor is for people, who
// read what it could not see.
func TestFailOnFailsClosed(t *testing.T) {
	t.Parallel()
	bundle := bundleOf(t, snapshot.Snapshot{
		Nodes:   []corev1.Node{gpuNode("gpu-1", corev1.ConditionTrue)},
		Missing: []snapshot.Missing{{What: "api/pods", Why: "pods is forbidden"}},
	})
	for _, test := range []struct {
		args  []string
		fails bool
	}{
		{[]string{"--fail-on", "error"}, true},
		{[]string{"--fail-on", "error", "-o", "junit"}, true},
		{[]string{"--fail-on", "error", "--allow-unknown"}, false},
		{[]string{"--fail-on", "never"}, false},
		{nil, false},
	} {
		_, _, err := execute(t, append(test.args, "--from-bundle", bundle)...)
		var verdict *usage.Verdict
		if failed := errors.As(err, &verdict); failed != test.fails ||
			failed && !strings.Contains(verdict.Message, "--allow-unknown") {
			t.Errorf("doctor %q: %v; wanted a verdict: %t", test.args, err, test.fails)
		}
	}
}

// The fields that scripts read of -o json are a contract; the page and the exit code go with every format.
func TestVerdictAndFiles(t *testing.T) {
	t.Parallel()
	bundle := bundleOf(t, snapshot.Snapshot{Nodes: []corev1.Node{gpuNode("gpu-1", corev1.ConditionUnknown)}})
	page := filepath.Join(t.TempDir(), "report.html")
	out, errOut, err := execute(t, "--from-bundle", bundle, "-o", "json", "--html", page, "--fail-on", "warning")
	var r struct {
		APIVersion, Kind string
		Items            []struct {
			ID, Severity string
			Root         *bool
			Object       *finding.Object
			Evidence     *[]finding.Evidence
			Fix          *finding.Fix
		}
	}
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil || r.Kind != doctor.Kind || r.APIVersion == "" {
		t.Fatalf("%v: %s", jsonErr, out)
	}
	for _, item := range r.Items {
		if item.ID == "" || item.Severity == "" || item.Root == nil || item.Object == nil || item.Evidence == nil ||
			item.Fix == nil {
			t.Errorf("an item lacks what scripts read: %+v", item)
		}
	}
	bad := len(r.Items) > 0 && (r.Items[0].Severity == "error" || r.Items[0].Severity == "warning")
	if got := errors.As(err, new(*usage.Verdict)); got != bad {
		t.Errorf("something is wrong: %v, and the verdict says so: %v (%v)", bad, got, err)
	}
	if raw, err := os.ReadFile(page); err != nil || !strings.HasPrefix(string(raw), "<!DOCTYPE html>") ||
		!strings.Contains(errOut, page+" written") {
		t.Errorf("the page: %v; said %q", err, errOut)
	}
	// It quotes logs, and names much of the cluster
	if info, err := os.Stat(page); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the page's mode is %v (%v)", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(page), ".gpu-fault*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, _, err := execute(t, "--from-bundle", bundle, "--fail-on", "never"); err != nil {
		t.Errorf("--fail-on never: %v", err)
	}
}

func TestIgnoreFile(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: gpufault.dev/v1alpha1\nkind: DoctorIgnore\n"
	for want, text := range map[string]string{
		"": head +
			"items:\n- id: \"*\"\n  object: Node cpu-*\n  reason: no GPUs there\n",
		"unknown field \"node\"; example:\n": head + "items:\n- id: \"*\"\n  node: x\n",
		"must begin with":                    "items: []\n",
		"has the wrong type":                 "- id: hw.row-remap\n",
		"invalid YAML: line 2":               "items:\n\t- x\n",
		"item 1 has no id":                   head + "items:\n- object: Node x\n",
		"unknown check \"no":                 head + "items:\n- id: no.such-check\n",
	} {
		file := filepath.Join(t.TempDir(), "ignore.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readIgnore(file); want == "" && err != nil ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; wanted %q", text, err, want)
		}
	}
}

func exampleChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "rt.wrong-instance", Layer: finding.LayerRuntime,
			Title:    "the toolkit configures a containerd that the kubelet does not use",
			Needs:    []engine.Need{engine.NeedNode, engine.NeedAPI},
			Reads:    "the kubelet's socket, who listens there, and the toolkit's variables",
			Why:      "A handler that is in the configuration of another containerd is of no use.",
			Explains: []string{"rt.handler-missing", "dp.*"}, Doc: "https://example.org/doc",
			Sources: []string{"gpu-operator#1323", "k8s-snap#1991"},
		},
		{
			ID: "rt.handler-missing", Layer: finding.LayerRuntime,
			Title: "the runtime lacks a handler that pods ask for", Needs: []engine.Need{engine.NeedAPI},
			Explains: []string{"dp.not-running"},
		},
		{
			ID: "dp.not-running", Layer: finding.LayerDevicePlugin, Title: "the device plugin does not run",
			Needs: []engine.Need{engine.NeedAPI},
		},
	}
}

func TestExplainAndChecks(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	streams := genericiooptions.IOStreams{Out: &out, ErrOut: &out}
	explain(streams, exampleChecks()[0], exampleChecks())
	golden.Compare(t, "explain.golden", out.String())
	out.Reset()
	explain(streams, exampleChecks()[2], exampleChecks())
	if want := "Is explained by:\n  rt.wrong-instance: the toolkit"; !strings.Contains(out.String(), want) {
		t.Errorf("explain lacks %q:\n%s", want, out.String())
	}
	for format, file := range map[string]string{"": "checks.golden", "json": "checks.golden.json"} {
		out.Reset()
		if err := printChecks(streams, printer.Format{Output: format}, exampleChecks()); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, file, out.String())
	}
	out.Reset()
	if err := printChecks(streams, printer.Format{Output: "name"}, exampleChecks()); err != nil ||
		!strings.HasPrefix(out.String(), "rt.wrong-instance\n") {
		t.Errorf("-o name: %v\n%s", err, out.String())
	}
}

func TestExplainOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	id := doctor.Checks()[0].ID
	if out, _, err := execute(t, "explain", "finding/"+id); err != nil || !strings.HasPrefix(out, id+": ") {
		t.Errorf("explain %s: %v\n%s", id, err, out)
	}
	_, bare, _ := strings.Cut(id, ".")
	if _, _, err := execute(t, "explain", bare); err == nil || !strings.Contains(err.Error(), "did you mean "+id) {
		t.Errorf("explain %s: %v", bare, err)
	}
}

func TestCompletionOfChecks(t *testing.T) {
	t.Parallel()
	id := doctor.Checks()[0].ID
	family, _, _ := strings.Cut(id, ".")
	words, _ := completeChecks(nil, nil, "x.y,"+family)
	all := "\n" + strings.Join(words, "\n")
	for _, want := range []string{"\nx.y," + family + ".*\t", "\nx.y," + id + "\t"} {
		if !strings.Contains(all, want) {
			t.Errorf("completion lacks %q: %s", want, all)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	ids := []string{"rt.wrong-instance", "rt.handler-missing", "dp.capacity-zero"}
	for word, want := range map[string]string{
		"rt.wrong-instanc": "rt.wrong-instance", "handler-missing": "rt.handler-missing",
		"dp.capacty-zero": "dp.capacity-zero", "zzz": "",
	} {
		if got := nearest(word, ids); got != want {
			t.Errorf("nearest to %s is %q, wanted %q", word, got, want)
		}
	}
}

package experiment

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// execute runs `run` with arguments, and returns stdout and stderr.
func execute(stdin string, args ...string) (string, string, error) {
	streams, in, out, errOut := genericiooptions.NewTestIOStreams()
	in.WriteString(stdin)
	cmd := NewRunCommand(kube.NewConnection(streams), streams,
		func(genericiooptions.IOStreams) *cobra.Command { return nil })
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return out.String(), errOut.String(), err
}

// saved writes a result to a file, as `run -o json` prints it.
func saved(t *testing.T, r experiment.Result) string {
	t.Helper()
	r.APIVersion, r.Kind = "gpufault.dev/v1alpha1", experiment.KindResult
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// beforeAndAfter are results that differ in every way.
func beforeAndAfter() (before, after experiment.Result) {
	ok := func(name string, seconds float64) experiment.Verdict {
		return experiment.Verdict{Name: name, OK: true, State: experiment.StateOK, After: seconds, Limit: 60}
	}
	late := experiment.Verdict{Name: "drained", State: experiment.StateLate, After: 75, Limit: 60}
	missing := experiment.Verdict{Name: "served", State: experiment.StateMissing, Limit: 60}
	happened := experiment.Verdict{Name: "ready", Not: true, State: experiment.StateHappened, After: 3, Limit: 60}
	quiet := experiment.Verdict{Name: "ready", Not: true, OK: true, State: experiment.StateOK, Limit: 60}
	before = experiment.Result{Name: "xid79", Passed: true, Verdicts: []experiment.Verdict{
		ok("detected", 0), ok("cordoned", 8), ok("drained", 50), ok("served", 2), quiet, ok("removed", 1),
	}}
	after = experiment.Result{Name: "xid79", Verdicts: []experiment.Verdict{
		ok("detected", 0.04), ok("cordoned", 11.2), late, missing, happened, ok("added", 1),
	}}
	return before, after
}

// What is worse is in upper case in the table, and in the sentence below it; the exit code is 2.
func TestCompareCommand(t *testing.T) {
	t.Parallel()
	before, after := beforeAndAfter()
	first, second := saved(t, before), saved(t, after)
	out, _, err := execute("", "compare", first, second, "--slower", "20%")
	var verdict *usage.Verdict
	if !errors.As(err, &verdict) {
		t.Fatal(err)
	}
	golden.Compare(t, "compare.golden", out+verdict.Message+"\n")
	out, said, err := execute("", "compare", first, first, "--slower", "20%")
	if err != nil || said != "no worse than before\n" || strings.Contains(out, "->") {
		t.Errorf("%s%s%v", out, said, err)
	}
	raw, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err = execute(string(raw), "compare", first, "-", "-o", "json")
	var c experiment.Comparison
	if !errors.As(err, &verdict) || json.Unmarshal([]byte(out), &c) != nil || !c.Worse || len(c.Items) != 7 {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, _ = execute("", "compare", first, second, "-o", "name")
	if out != "expectation/drained\nexpectation/served\nexpectation/not ready\nexpectation/removed\n" {
		t.Errorf("%q", out)
	}
}

// Repeated experiments show how often an expectation was met, and their median times.
func TestCompareRepeated(t *testing.T) {
	t.Parallel()
	round := func(n int, name string, ok bool, seconds float64) experiment.Verdict {
		v := experiment.Verdict{Name: name, Round: n, OK: ok, State: experiment.StateOK, After: seconds, Limit: 60}
		if !ok {
			v.State = experiment.StateLate
		}
		return v
	}
	first := saved(t, experiment.Result{Name: "x", Passed: true, Verdicts: []experiment.Verdict{
		round(1, "cordoned", true, 1), round(2, "cordoned (2)", true, 3),
	}})
	second := saved(t, experiment.Result{Name: "y", Verdicts: []experiment.Verdict{
		round(1, "cordoned", true, 2), round(2, "cordoned (2)", false, 70), round(3, "cordoned (3)", true, 4),
	}})
	out, said, err := execute("", "compare", first, second, "--no-headers")
	const want = "cordoned   2.0s   4.0s   +2.0s, 2.0x   ok 2/2 -> LATE 2/3\n"
	if out != want || err == nil {
		t.Errorf("%q, %v", out, err)
	}
	if said != "Warning: the results are from two different experiments, \"x\" and \"y\"\n" {
		t.Errorf("%q", said)
	}
}

// What is wrong with a command line is an error, before a file is read.
func TestCompareErrors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"compare a":              "requires two files",
		"compare - -":            "only one of the results can be stdin",
		"compare a b --slower 2": `--slower must be a percentage such as 20%, or a time such as 5s, not "2"`,
		"compare a b -o junit":   "unknown output format",
		"compare missing b":      "missing: no such file or directory",
	} {
		if _, _, err := execute("", strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A test of Chainsaw has the limits and the ledger of its user, and refuses what would lead it to another cluster.
func TestExport(t *testing.T) {
	t.Parallel()
	out, _, err := execute("", "export", "gsp-119", "--node", "gpu-1", "--allow-majority")
	const want = "kubectl gpu-fault xid 119 gpu-1 --allow-majority --yes --output=name --expect=detected,cordoned " +
		"--within=detected=1m0s,cordoned=2m0s"
	if err != nil || !strings.Contains(out, want) {
		t.Errorf("%v\n%s", err, out)
	}
	const elsewhere = "apiVersion: gpufault.dev/v1alpha1\nkind: Experiment\nmetadata: {name: x}\n" +
		"steps: [{inject: {command: [xid, '79', '${target.node}', --context=other]}}]\n"
	for stdin, c := range map[string]struct{ line, want string }{
		elsewhere: {"export -f - --node a", "--context=other is not allowed in an experiment"},
		"x":       {"export gsp-119", "experiment gsp-119: steps[0]: target: specify --node"},
		"y":       {"export gsp-119 --node a --format litmus", `invalid value "litmus" for --format: must be chainsaw`},
		"z":       {"export gsp-11 --node a", "did you mean gsp-119?"},
	} {
		_, _, err := execute(stdin, strings.Fields(c.line)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.line, err)
		}
	}
}

// A subcommand hides an experiment of its name.
func TestBuiltInExperimentsAreNoSubcommands(t *testing.T) {
	t.Parallel()
	all, err := experiment.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	streams := genericiooptions.NewTestIOStreamsDiscard()
	run := NewRunCommand(kube.NewConnection(streams), streams, nil)
	for _, e := range all {
		if found, _, err := run.Find([]string{e.Metadata.Name}); err != nil || found != run {
			t.Errorf("%s is a subcommand: %v", e.Metadata.Name, err)
		}
	}
	if len(run.Commands()) == 0 {
		t.Error("no subcommands")
	}
}

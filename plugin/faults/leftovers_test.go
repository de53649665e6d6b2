package faults

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

var leftoversNow = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// someLeftovers returns one of each kind of remedy.
func someLeftovers() []leftover.Leftover {
	since := leftoversNow.Add(-3 * time.Hour)
	return []leftover.Leftover{
		{
			Kind: leftover.KindFault, Namespace: "gpu-fault", Name: "runtime-2hb5gn", Of: leftover.Ours,
			Run: "runtime-2hb5gn", Since: since,
			What: []string{"containerd without a handler on node/gpu-1: its time was up"}, Remedy: leftover.Nobody,
			Todo: "kubectl gpu-fault revert runtime-2hb5gn",
		},
		{
			APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: "gpu-fault", Name: "lock",
			Of: leftover.Ours, Run: "xid-2hb5gn", Since: since,
			What: []string{"lock of Node/gpu-1", "the run is closed"}, Remedy: leftover.Delete,
		},
		{
			APIVersion: "apps/v1", Kind: "Deployment", Namespace: "dynamo", Name: "web", Of: leftover.Dynamo,
			What: []string{
				"cuda_intercept.so in env LD_PRELOAD", "env CUDA_XID_TYPE", "volume cuda-fault-lib",
				"init container compile-cuda-fault-lib",
			},
			With:   []string{"pod/web-1", "pod/web-2"},
			Doubts: []string{"nodeAffinity kubernetes.io/hostname In [gpu-1] may be the tool's: look"},
			Remedy: leftover.Edit,
		},
		{
			Kind: "record", Node: "gpu-1", Name: "/var/lib/gpu-fault/runtime-33", Of: leftover.Ours, Run: "runtime-33",
			Since: since,
			What:  []string{"record of changed files"}, Remedy: leftover.OnNode,
		},
	}
}

func leftoversReportOn(
	items []leftover.Leftover, format printer.Format,
) (report *leftoversReport, stdout, stderr *bytes.Buffer) {
	streams, _, stdout, stderr := genericiooptions.NewTestIOStreams()
	return &leftoversReport{
		connection: kube.NewConnection(streams), streams: streams, format: format, now: leftoversNow,
		found: &leftover.Found{Items: items}, items: items,
	}, stdout, stderr
}

func TestLeftoversAreReadByPeople(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"", "wide", "json", "name"} {
		report, stdout, _ := leftoversReportOn(someLeftovers(), printer.Format{Output: output})
		if err := report.print(); !errors.As(err, new(*usage.Verdict)) {
			t.Errorf("-o %q ended with %v, wanted the verdict that something is left", output, err)
		}
		golden.Compare(t, "leftovers"+output+".golden", stdout.String())
	}
}

// Nothing found is no error, but nobody may take "not allowed to look" for "nothing there".
func TestNothingFound(t *testing.T) {
	t.Parallel()
	report, stdout, stderr := leftoversReportOn(nil, printer.Format{})
	if err := report.print(); err != nil || stdout.String() != "" || stderr.String() != "nothing found\n" {
		t.Errorf("got %v, %q, %q", err, stdout, stderr)
	}
	report, _, stderr = leftoversReportOn(nil, printer.Format{})
	report.found.Skipped = []leftover.Skipped{
		{What: "pods", Why: "you may not list them in all namespaces", Namespaces: []string{"gpu-fault"}},
	}
	report.found.Nodes = []string{"gpu-1", "gpu-2"}
	report.warn([]string{"gpu-2"})
	if err := report.print(); err == nil ||
		!strings.Contains(err.Error(), "nothing found, but 1 kind could not be checked") {
		t.Error(err)
	}
	for _, want := range []string{
		"Warning: not checked: pods: you may not list them in all namespaces; only namespaces gpu-fault were checked",
		"not checked: files on gpu-1, where runs ended without a complete revert; to check them, add --node gpu-1\n",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
}

// After a clean-up the exit code shows whether anything is left, and each change has a line as kubectl has it.
func TestCleanSaysWhatItDidAndWhatIsLeft(t *testing.T) {
	t.Parallel()
	items := someLeftovers()
	report, stdout, stderr := leftoversReportOn(items, printer.Format{})
	report.done(leftover.Result{Leftover: items[1], Did: leftover.DidDelete})
	report.done(leftover.Result{Leftover: items[2], Did: leftover.DidEdit})
	report.done(leftover.Result{Leftover: items[3], Err: errors.New("its files are not as they were")})
	err := report.end(t.Context())
	want :=
		"lease.coordination.k8s.io/lock deleted from namespace gpu-fault\ndeployment.apps/web edited in namespace dynamo\n"
	if stdout.String() != want {
		t.Errorf("stdout %q, wanted %q", stdout, want)
	}
	for _, part := range []string{
		"record/gpu-1:/var/lib/gpu-fault/runtime-33 was not removed: its files are not as they were",
		"fault/runtime-2hb5gn in namespace gpu-fault was not removed: kubectl gpu-fault revert runtime-2hb5gn",
		" running pods are affected until they are recreated: pod/web-1 pod/web-2",
	} {
		if !strings.Contains(stderr.String(), part) {
			t.Errorf("stderr lacks %q:\n%s", part, stderr)
		}
	}
	if no := (*usage.Verdict)(nil); !errors.As(err, &no) || no.Message != "2 of 4 leftovers not removed" {
		t.Errorf("it ended with %v", err)
	}
	all, _, _ := leftoversReportOn(items[1:2], printer.Format{})
	all.done(leftover.Result{Leftover: items[1], Did: leftover.DidGo})
	if err := all.end(t.Context()); err != nil {
		t.Errorf("all is gone, and it ended with %v", err)
	}
}

func TestWhatTheHelperMadeOfIt(t *testing.T) {
	t.Parallel()
	l := someLeftovers()[3]
	answer := func(removed bool, problem string) []deadman.Leftover {
		return []deadman.Leftover{{Kind: "record", Path: l.Name, Removed: removed, Problem: problem}}
	}
	for name, tc := range map[string]struct {
		answer []deadman.Leftover
		did    string
	}{
		"removed": {answer(true, ""), didRemove}, "kept": {answer(false, ""), ""},
		"problem": {answer(false, "busy"), ""}, "gone": {nil, leftover.DidGo},
	} {
		if did, err := became(l, tc.answer); did != tc.did || (err == nil) != (tc.did != "") {
			t.Errorf("%s: %q, %v", name, did, err)
		}
	}
}

func TestLeftoversFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for want, args := range map[string]string{
		"cannot be used together": "--node a --nodes",
		"an empty name":           "--node=",
		"requires --clean":        "--dry-run",
		"use --dry-run=client":    "--clean --dry-run=server",
		"none, client":            "--clean --dry-run=yes",
		"must be 1 or more":       "--parallel 0",
		"unknown output format":   "-o xml",
		"takes no arguments":      "gpu-1",
	} {
		streams, _, _, _ := genericiooptions.NewTestIOStreams()
		cmd := NewLeftoversCommand(nil, streams)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		if want == "an empty name" {
			cmd.SetArgs([]string{"--node", " "})
		}
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %q", args, err, want)
		}
	}
}

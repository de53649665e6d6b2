package faults

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func step(node string, state ledger.State, message string) ledger.Step {
	return ledger.Step{
		Target: ledger.Target{Kind: "Node", Name: node}, State: state, Message: message,
		Undo: ledger.Undo{Kind: kernellog.UndoKind, Permanent: true},
	}
}

func TestListIsReadByPeople(t *testing.T) {
	t.Parallel()
	now := time.Now()
	created := now.Add(-3 * time.Minute)
	runs := []ledger.Run{{
		ID: "xid-2hb5gn", Phase: ledger.Proven, Summary: "XID 79 on GPU 0", By: "alice", Created: created,
		Until:   now.Add(27 * time.Minute),
		Command: []string{"kubectl-gpu_fault", "xid", "79", "node-a", "node-b", "--message", "it's gone"},
		Steps:   []ledger.Step{step("node-a", ledger.StateProven, ""), step("node-b", ledger.StateProven, "")},
	}, {
		ID: "xid-chgqth", Phase: ledger.Failed, Summary: "XID 63 on GPU 1", Created: created,
		Until: now.Add(-time.Minute), Message: "1 of 1 step failed",
		Command: []string{"/opt/bin/kubectl-gpu_fault.exe", "xid", "63", "node-b"},
		Steps:   []ledger.Step{step("node-b", ledger.StateFailed, "node node-b has no GPU 1\n0  0000:17:00")},
	}, {
		ID: "xid-rqj7p9", Phase: ledger.Failed, Summary: "XID 63 on GPU 0", By: "bob", Created: created,
		Message: "1 of 4 steps failed",
		Steps: []ledger.Step{
			step("a", ledger.StateProven, ""), step("b", ledger.StateFailed, "no helper"),
			step("c", ledger.StateSkipped, ""), step("d", ledger.StateSkipped, ""),
		},
	}}
	for format, file := range map[string]string{"": "list.golden", "wide": "list-wide.golden"} {
		var out bytes.Buffer
		if err := table(runs, printer.Format{Output: format}, false, now).Write(&out); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, file, out.String())
	}
}

// TestListFitsATerminal: with the names of a cloud's nodes and a long fault, the table has at most 80 columns, and says
// which run it is and how long it lasts.
func TestListFitsATerminal(t *testing.T) {
	t.Parallel()
	now := time.Now()
	target := func(name string) ledger.Step {
		return ledger.Step{
			Target: ledger.Target{Kind: "Node", Name: name}, State: ledger.StateProven,
			Undo: ledger.Undo{Kind: kernellog.UndoKind, Permanent: true},
		}
	}
	runs := []ledger.Run{{
		ID: "xid-2hb5gn", Phase: ledger.Proven,
		Summary: "XIDs 48, 63, 94, 154 on GPU 0000:17:00, with what comes with it, 50 times",
		By:      "arn:aws:sts::123456789012:assumed-role/sre-oncall/alice@example.com",
		Created: now.Add(-50 * time.Hour),
		Until:   now.Add(598 * time.Second), Namespace: "gpu-fault-of-the-training-platform",
		Steps: []ledger.Step{
			target("ip-192-168-112-34.eu-central-1.compute.internal"), target("gke-training-h100-pool-3f2a91bc-x7k2"),
		},
	}, {
		ID: "scenario-rqj7p9", Phase: ledger.Interrupted, Summary: "scenario unbalanced-nodes, seed 123456789",
		By: "system:serviceaccount:ci:runner", Created: now.Add(-5 * time.Minute),
		Closed: now.Add(-3 * time.Minute),
		Steps: []ledger.Step{{
			Target: ledger.Target{
				Kind: "Deployment", Namespace: "inference-production", Name: "llama-3-405b-decode-worker",
			},
			Undo: ledger.Undo{Kind: kernellog.UndoKind},
		}},
	}}
	for _, everywhere := range []bool{false, true} {
		fitted := table(runs, printer.Format{}, everywhere, now)
		fitted.Fit(leastWidth, "LEDGER", "FAULT", "TARGETS")
		var out bytes.Buffer
		if err := fitted.Write(&out); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > leastWidth+1 {
				t.Errorf("%d columns: %s", len(line)-1, line)
			}
		}
		for _, want := range []string{
			"xid-2hb5gn", "in 9m58s", "scenario-rqj7p9", "Interrupted", "3m ago", "XID", "ip-",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is missing:\n%s", want, out.String())
			}
		}
	}
}

func TestCommandLineCanBeTypedAgain(t *testing.T) {
	t.Parallel()
	for want, words := range map[string][]string{
		"":                                 nil,
		"kubectl gpu-fault list":           {"kubectl-gpu_fault", "list"},
		"/usr/bin/other list":              {"/usr/bin/other", "list"},
		"kubectl gpu-fault xid 79 -l a=b":  {"bin/kubectl-gpu_fault", "xid", "79", "-l", "a=b"},
		`kubectl gpu-fault --pod 'a b' ''`: {"kubectl-gpu_fault", "--pod", "a b", ""},
		`kubectl gpu-fault 'it'\''s'`:      {"kubectl-gpu_fault", "it's"},
	} {
		if got := commandLine(words); got != want {
			t.Errorf("%q became %s, wanted %s", words, got, want)
		}
	}
}

func TestOutcomeOfARevert(t *testing.T) {
	t.Parallel()
	undone := step("n", ledger.StateFailed, "")
	undone.Undone = time.Now()
	undoable := step("n", ledger.StateApplied, "")
	undoable.Undo.Permanent = false
	reverted := undoable
	reverted.State = ledger.StateReverted
	for name, test := range map[string]struct {
		step ledger.Step
		want string
	}{
		"lines stay":            {step("n", ledger.StatePermanent, ""), "permanent"},
		"failed, nothing there": {undone, "nothing to undo"},
		"failed, may be there":  {step("n", ledger.StateFailed, ""), "not undone"},
		"nothing was written":   {step("n", ledger.StateReverted, ""), "nothing to undo"},
		"never begun":           {step("n", ledger.StateSkipped, ""), "nothing to undo"},
		"put back":              {reverted, "reverted"},
		"undo failed":           {undoable, "not undone"},
		"changed by someone":    {step("n", ledger.StateSuperseded, ""), "superseded"},
	} {
		if got := outcome(test.step); got != test.want {
			t.Errorf("%s: %q, wanted %q", name, got, test.want)
		}
	}
}

// What each detector needs to forget is long: several runs say it once.
func TestRemarksAreMerged(t *testing.T) {
	t.Parallel()
	const heading = "the lines stay. What each detector needs to forget them:"
	runs := []ledger.Run{
		{Steps: []ledger.Step{
			step("a", ledger.StatePermanent, heading+"\n  gpud: a\n  NVSentinel: b"),
			step("b", ledger.StatePermanent, heading+"\n  gpud: a\n  NVSentinel: b"),
			step("c", ledger.StateReverted, "nothing had been written to the kernel log"),
		}},
		{Steps: []ledger.Step{step("a", ledger.StateSuperseded, "changed by bob")}},
		{Steps: []ledger.Step{step("a", ledger.StatePermanent, heading+"\n  gpud: a\n  npd: c")}},
	}
	want := strings.Join(
		[]string{"Note: " + heading, "  gpud: a", "  NVSentinel: b", "  npd: c", "Note: changed by bob"}, "\n",
	)
	if diff := cmp.Diff(want, remarks(runs)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestARecordForgesNoLine: whoever may write ConfigMaps may write a record whose texts have line breaks. They begin no
// line of our output.
func TestARecordForgesNoLine(t *testing.T) {
	t.Parallel()
	const forged = "all is well\nxid-999 node-x: reverted"
	failed := step("node-a", ledger.StateFailed, forged)
	failed.Evidence = []ledger.Evidence{{Source: forged, Text: forged}}
	run := ledger.Run{
		ID: "xid-2hb5gn", Phase: ledger.Failed, Summary: "XID 79", By: "bob", Message: forged,
		Command: []string{"kubectl-gpu_fault", forged},
		Steps: []ledger.Step{
			failed, step("node-b", ledger.StateSuperseded, forged),
			step("node-c", ledger.StatePermanent, forged+"\nmore"),
		},
	}
	var out bytes.Buffer
	for _, format := range []string{"", "wide"} {
		if err := table([]ledger.Run{run}, printer.Format{Output: format}, true, time.Now()).Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	run.By, run.Summary = forged, forged
	printer.Talk(&out, "%s", heading(run))
	printer.Talk(&out, "%s", remarks([]ledger.Run{run}))
	progress.New(&out).Step(forged, forged)
	progress.New(&out).Note(forged)
	report, stdout, stderr := leftoversReportOn([]leftover.Leftover{{
		Kind: forged, Name: forged, Namespace: forged, Remedy: leftover.Nobody, Todo: forged, What: []string{forged},
		Doubts: []string{forged},
	}}, printer.Format{})
	report.found.Skipped = []leftover.Skipped{{What: forged, Why: forged, Namespaces: []string{forged}}}
	report.warn(nil)
	report.plan()
	_ = report.print()
	report.done(leftover.Result{Leftover: report.items[0], Did: leftover.DidEdit})
	report.done(leftover.Result{Leftover: report.items[0], Err: errors.New(forged)})
	_ = report.end(t.Context())
	if all := out.String() + stdout.String() + stderr.String(); strings.Contains("\n"+all, "\nxid-999") {
		t.Errorf("a line of the record is one of ours:\n%s", all)
	}
}

// described has an undo for each action.
type described struct{}

func (described) Describe(step ledger.Step) string { return "undo " + step.Action }

// An exercise makes dozens of things. The list tells of the first ones, and says once what is said twice.
func TestTheUndoOfManyStepsIsCut(t *testing.T) {
	t.Parallel()
	var run ledger.Run
	for _, action := range []string{"a", "b", "b", "c", "d", "e"} {
		run.Steps = append(run.Steps, ledger.Step{Action: action, Undo: ledger.Undo{Kind: "test"}})
	}
	undoers := map[string]described{"test": {}}
	if text, want := undo(undoers, run, time.Now()), "undo a; undo b; undo c; and 2 more"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	run.Steps = run.Steps[:4]
	if text, want := undo(undoers, run, time.Now()), "undo a; undo b; undo c"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

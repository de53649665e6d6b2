package faults

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"

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
		ID: "xid-2hb5gn", Phase: ledger.Proven, Summary: "XID 79 on GPU 0", By: "alice", Created: created, Until: now.Add(27 * time.Minute),
		Command: []string{"kubectl-gpu_fault", "xid", "79", "node-a", "node-b", "--message", "it's gone"},
		Steps:   []ledger.Step{step("node-a", ledger.StateProven, ""), step("node-b", ledger.StateProven, "")},
	}, {
		ID: "xid-chgqth", Phase: ledger.Failed, Summary: "XID 63 on GPU 1", Created: created, Until: now.Add(-time.Minute), Message: "1 of 1 steps failed",
		Command: []string{"/opt/bin/kubectl-gpu_fault.exe", "xid", "63", "node-b"},
		Steps:   []ledger.Step{step("node-b", ledger.StateFailed, "node node-b has no GPU 1\n0  0000:17:00")},
	}, {
		ID: "xid-rqj7p9", Phase: ledger.Failed, Summary: "XID 63 on GPU 0", By: "bob", Created: created, Message: "1 of 4 steps failed",
		Steps: []ledger.Step{
			step("a", ledger.StateProven, ""), step("b", ledger.StateFailed, "no helper"), step("c", ledger.StateSkipped, ""), step("d", ledger.StateSkipped, ""),
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
	want := strings.Join([]string{heading, "  gpud: a", "  NVSentinel: b", "  npd: c", "changed by bob"}, "\n")
	if diff := cmp.Diff(want, remarks(runs)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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

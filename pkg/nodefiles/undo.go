package nodefiles

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
)

// UndoKind is the ledger.Undo.Kind of changed files.
const UndoKind = "node-files"

// Data is what the ledger keeps in ledger.Undo.Data: of each file only the bytes that were changed, since the rest may hold credentials.
type Data struct {
	Files    []deadman.File   `json:"files"`
	Service  *deadman.Service `json:"service,omitempty"`
	Settings PodSettings      `json:"settings"`
	// NodeLoss is whether nothing can be started on the node while the change is there, so that only its dead man can end it.
	NodeLoss bool `json:"nodeLoss,omitempty"`
}

// Undoer puts files back. Start is nil where it is only to describe.
type Undoer struct {
	Start Start
	// Progress tells the user what goes on with a step; nil: nobody.
	Progress func(step ledger.Step, text string)
	// Show is for the user's eyes only, not for the ledger: what somebody else wrote into a file may hold credentials. Nil: nobody's.
	Show func(text string)
	// Retry is the pause between two tries on a node that is lost; 0 means three seconds.
	Retry time.Duration
	// Overwrite also puts back files that somebody has changed meanwhile, where the node still has what was there before.
	Overwrite bool
}

// restorePodLives is how long a debug pod may take to put files back and see the runtime serve again.
const restorePodLives = 10 * time.Minute

var _ fault.Needer = Undoer{}

// Needs implements fault.Needer.
func (u Undoer) Needs(step ledger.Step, ledgerNamespace string) []fault.Permission {
	if len(step.Undo.Data) == 0 {
		return nil
	}
	return fault.DebugPodPermissions(ledgerNamespace)
}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	var data Data
	if len(step.Undo.Data) == 0 || json.Unmarshal(step.Undo.Data, &data) != nil {
		return "put the files back"
	}
	var names []string
	for _, f := range data.Files {
		verb := "put back "
		if f.Before == deadman.Absent {
			verb = "remove "
		}
		names = append(names, verb+f.Path)
	}
	text := strings.Join(names, ", ")
	if data.Service != nil {
		text += ", restart " + strings.TrimSuffix(data.Service.Unit, ".service")
	}
	return text
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	var data Data
	if err := json.Unmarshal(step.Undo.Data, &data); err != nil {
		return "", "", fmt.Errorf("the record's undo cannot be read: %w%s", err, byHand(run))
	}
	if err := data.validate(); err != nil {
		return "", "", fmt.Errorf("the record's undo is not believed: %w%s", err, byHand(run))
	}
	pod, err := u.start(ctx, run, step, data)
	if err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand(run))
	}
	u.say(step, "putting the files back")
	restored, err := pod.Restore(ctx, deadman.Restore{Files: data.Files, Service: data.Service, Overwrite: u.Overwrite})
	if err = errors.Join(err, pod.Close(ctx)); err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand(run))
	}
	if u.Show != nil {
		for _, f := range restored.Files {
			if text := difference(f); text != "" {
				u.Show(text)
			}
		}
	}
	return verdict(data, *restored)
}

// comeback is how long after its time a lost node may take to start pods again.
const comeback = 90 * time.Second

// start starts a debug pod. On a node that the fault has taken away it waits for the dead man first.
func (u Undoer) start(ctx context.Context, run ledger.Run, step ledger.Step, data Data) (Pod, error) {
	say, late := func(text string) { u.say(step, text) }, false
	for {
		pod, err := u.Start(ctx, run, step.Target.Name, data.Settings, restorePodLives, say)
		if err == nil || !data.NodeLoss || run.Until.IsZero() || time.Now().After(run.Until.Add(comeback)) {
			return pod, err
		}
		say = func(string) {} // the same each time
		if wait := time.Until(run.Until).Round(time.Second); wait > 0 {
			u.say(step, fmt.Sprintf("nothing can be started on it: waiting for its dead man, in %s%s", wait, byHand(run)))
		} else if !late {
			late = true
			u.say(step, "waiting until the node starts pods again")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		case <-time.After(max(time.Until(run.Until), cmp.Or(u.Retry, 3*time.Second))):
		}
	}
}

func (u Undoer) say(step ledger.Step, text string) {
	if u.Progress != nil {
		u.Progress(step, text)
	}
}

// byHand says how the node heals without us.
func byHand(run ledger.Run) string {
	text := fmt.Sprintf("; by hand, on the node: sh %s/restore.sh", path.Join(deadman.Dir, run.ID))
	if time.Now().Before(run.Until) {
		text += fmt.Sprintf("; its dead man does it at %s", run.Until.Format(time.RFC3339))
	}
	return text
}

// validate refuses what this tool never writes. The data comes from the cluster, and is about to be written by root.
func (d Data) validate() error {
	if len(d.Files) == 0 {
		return errors.New("it names no files")
	}
	for _, f := range d.Files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || path.Ext(f.Path) != ".toml" {
			return fmt.Errorf("%q is no configuration file of a container runtime", f.Path)
		}
		if f.After == deadman.Absent || f.Before == f.After {
			return fmt.Errorf("%s: its sums make no sense", f.Path)
		}
		if f.Meta != nil && f.Meta.Mode&^0o777 != 0 {
			return fmt.Errorf("%s: no configuration file has mode %o", f.Path, f.Meta.Mode)
		}
	}
	return nil
}

// verdict says what became of the files, for people.
func verdict(data Data, restored deadman.Restored) (ledger.State, string, error) {
	var put, over, already, by, theirs []string
	for _, f := range restored.Files {
		switch f.Outcome {
		case deadman.OutcomeRestored:
			if f.Overwritten {
				over = append(over, f.Path)
			} else {
				put = append(put, f.Path)
			}
		case deadman.OutcomeAlready:
			if !f.SameMeta {
				by = append(by, f.Path)
			} else {
				already = append(already, f.Path)
			}
		case deadman.OutcomeSuperseded:
			theirs = append(theirs, report(file(data.Files, f.Path), f))
		}
	}
	var lines []string
	if len(put) > 0 {
		lines = append(lines, fmt.Sprintf("%s: bytes, mode, owner and times are as before", strings.Join(put, ", ")))
	}
	if len(over) > 0 {
		lines = append(lines, fmt.Sprintf("%s: what somebody had written there meanwhile is gone, as asked for; bytes, mode, owner and times are as before", strings.Join(over, ", ")))
	}
	if len(already) > 0 {
		lines = append(lines, fmt.Sprintf("%s: bytes, mode, owner and times are as before%s", strings.Join(already, ", "), who(restored)))
	}
	if len(by) > 0 {
		lines = append(lines, fmt.Sprintf("%s: its bytes are as before, put back by somebody else: its mode, owner or time is another", strings.Join(by, ", ")))
	}
	lines = append(lines, theirs...)
	switch {
	case len(theirs) > 0:
		return ledger.StateSuperseded, strings.Join(lines, "\n"), nil
	case data.Service != nil && !restored.SameConfig: // it serves, and was restarted with our files as before
		lines = append(lines, fmt.Sprintf("%s shows another configuration than before, since something that is not ours changed meanwhile: see `kubectl gpu-fault runtime show`",
			strings.TrimSuffix(data.Service.Unit, ".service")))
	case data.Service != nil:
		lines = append(lines, fmt.Sprintf("%s shows the configuration of before", strings.TrimSuffix(data.Service.Unit, ".service")))
	}
	return ledger.StateReverted, strings.Join(lines, "\n"), nil
}

// who put files back that were as before when we came.
func who(restored deadman.Restored) string {
	switch by := restored.ByDeadMan; {
	case by != nil:
		return fmt.Sprintf("; the node's dead man put them back at %s (%s)", by.Time.UTC().Format(time.RFC3339), by.Cause)
	case restored.RecordMissing: // which a dead man removes when it is done
		return "; the node's dead man had put them back, or nothing had been changed"
	}
	return "; nothing had been changed"
}

func file(files []deadman.File, path string) deadman.File {
	for _, f := range files {
		if f.Path == path {
			return f
		}
	}
	return deadman.File{Path: path}
}

var _ fault.Undoer = Undoer{}

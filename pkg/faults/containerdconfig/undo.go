package containerdconfig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// UndoKind is the ledger.Undo.Kind for changed files.
const UndoKind = "node-files"

// Claim is the content of ledger.Undo.Data. Anyone with permission to write ConfigMaps may have written it, so only its
// Key is sent to nodes. The rest is only compared with the node's own data and shown to the user.
type Claim struct {
	Files []ClaimedFile `json:"files"`
	// Image is the image of the debug pod that made the change.
	Image string `json:"image,omitempty"`
	// NodeLoss means that no pod can start on the node while the change is in place, so that only the dead man's switch
	// can restore the node.
	NodeLoss bool `json:"nodeLoss,omitempty"`
	// Loaded are the files that containerd loaded before the change.
	Loaded []string `json:"loaded,omitempty"`
	// Key is the key of the node's record if the record is encrypted; see deadman.Change. It is sent to the node.
	Key []byte `json:"key,omitempty"`
}

// ClaimedFile is a file that the run changed, according to the record. Before and After are the SHA-256 checksums of
// the file's contents, or deadman.Absent.
type ClaimedFile struct {
	Path   string `json:"path"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Undoer restores files on nodes from the nodes' own records. Start may be nil if only Describe is called.
type Undoer struct {
	fault.OnNode
	Start Start
	// Image is the image of the debug pods that Start creates.
	Image string
	// Show shows text to the user that must not be recorded, because changes by other clients may contain credentials.
	// It may be nil.
	Show func(text string)
	// Deadline returns the time until which to wait for the dead man's switches of lost nodes. It is called when the
	// first wait starts. If it is nil, the command waits until MostWait after the start of the first wait.
	Deadline func() time.Time
	// Retry is the delay between attempts on a lost node. 0 means three seconds.
	Retry time.Duration
	// Added enables reporting of files that containerd loads after the restore but did not load before the change,
	// because another client may have repaired the fault with these files. The step is then superseded.
	Added bool
	// Overwrite also restores files that another client has changed after the fault, if the node still has the original
	// content.
	Overwrite bool
}

// restorePodLives is the lifetime of a debug pod that restores files and waits for the runtime to respond again.
const restorePodLives = 10 * time.Minute

var (
	_ fault.Needer     = Undoer{}
	_ fault.NodeUndoer = Undoer{}
)

// Describe implements fault.Undoer.
func (u Undoer) Describe(ledger.Step) string {
	return "restore the files that the node has recorded for the run, and restart the service that loads them"
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	var claim Claim
	if err := json.Unmarshal(step.Undo.Data, &claim); err != nil {
		return "", "", fmt.Errorf("cannot read the undo data in the record: %w%s", err, byHand(run, claim))
	}
	pod, err := u.start(ctx, run, step, claim)
	if err != nil {
		return "", "", fmt.Errorf("%w%s%s", err, otherImage(claim.Image, u.Image), byHand(run, claim))
	}
	u.Say(step)("restoring the files")
	state, said, err := u.restore(ctx, pod, run, step, claim)
	if err = errors.Join(err, pod.Close(ctx)); err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand(run, claim))
	}
	return state, said, nil
}

// key returns the key of the node's record. An invalid key is dropped, because otherwise the node would reject the
// request. A user who edits the record must not be able to block an undo by adding a key that the node's record does
// not need.
func (c Claim) key() []byte {
	if len(c.Key) != deadman.KeySize {
		return nil
	}
	return c.Key
}

// otherImage returns a hint for the user if the record names a different image for the debug pod, because the registry
// of that image may be the only reachable one.
func otherImage(recorded, used string) string {
	if recorded == "" || recorded == used {
		return ""
	}
	return fmt.Sprintf("; the run was injected with image %q: if you trust it, pass --image", recorded)
}

func (u Undoer) restore(
	ctx context.Context, pod Pod, run ledger.Run, step ledger.Step, claim Claim,
) (ledger.State, string, error) {
	restored, err := pod.Restore(ctx, deadman.Restore{Overwrite: u.Overwrite, Key: claim.key()})
	if err != nil {
		return "", "", err
	}
	if restored.RecordMissing {
		u.Say(step)("the node has no record of the run: comparing the node's files")
		runtime, err := pod.InspectRuntime(ctx)
		if err != nil {
			return "", "", fmt.Errorf(
				"the node has no record of the run, and its files cannot be compared with the changes of the run: %w",
				err,
			)
		}
		return unrecorded(run, step.Target.Name, claim, *restored, *runtime)
	}
	if u.Show != nil {
		for _, f := range restored.Files {
			if text := difference(f); text != "" {
				u.Show(text)
			}
		}
	}
	state, said, err := verdict(*restored)
	if err != nil || !u.Added || len(claim.Loaded) == 0 {
		return state, said, err
	}
	runtime, err := pod.InspectRuntime(ctx)
	if err != nil {
		return "", "", fmt.Errorf("the files were restored, but could not be compared with the files from before the change: %w", err)
	}
	for _, f := range loaded(*runtime) {
		if !slices.Contains(claim.Loaded, f) {
			state = ledger.StateSuperseded
			said += fmt.Sprintf("\n%q is a new file that is not from this run; containerd still loads it", f)
		}
	}
	return state, said, nil
}

// loaded returns the files that the kubelet's containerd loads.
func loaded(runtime api.Runtime) []string {
	var names []string
	if runtime.Instance != nil {
		for _, f := range runtime.Instance.Files {
			names = append(names, f.Path)
		}
	}
	return names
}

const (
	// comeback is how long, after the end of the TTL, a lost node may take until it can start pods again.
	comeback = 90 * time.Second
	// MostWait is the maximum total time for which a command waits for the dead man's switches of lost nodes. If a node
	// takes longer to restore itself, its run must be reverted later, so that it does not delay the revert of other
	// runs.
	MostWait = 15 * time.Minute
)

// start starts a debug pod. On a node that the fault has made unavailable, it first waits for the dead man's switch.
func (u Undoer) start(ctx context.Context, run ledger.Run, step ledger.Step, claim Claim) (Pod, error) {
	say, late, deadline := u.Say(step), false, time.Time{}
	for {
		pod, err := u.Start(ctx, run, step.Target.Name, restorePodLives, say)
		if err == nil || !claim.NodeLoss || run.Until.IsZero() || apierrors.IsNotFound(err) ||
			time.Now().After(run.Until.Add(comeback)) {
			return pod, err
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(MostWait)
			if u.Deadline != nil {
				deadline = u.Deadline()
			}
		}
		if run.Until.After(deadline) || time.Now().After(deadline) {
			return nil, fmt.Errorf("%w; according to the record, the node restores itself at %s: revert the run after that", err,
				run.Until.Format(time.RFC3339))
		}
		say = func(string) {} // later attempts would repeat the message
		if wait := time.Until(run.Until).Round(time.Second); wait > 0 {
			u.Say(step)(
				fmt.Sprintf("no pod can be started on the node: waiting for the dead man's switch, which acts in "+
					"%s%s", wait, byHand(run, claim)))
		} else if !late {
			late = true
			u.Say(step)("waiting for the node to start pods again")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		case <-time.After(max(time.Until(run.Until), cmp.Or(u.Retry, 3*time.Second))):
		}
	}
}

// byHand returns instructions for restoring the node without this tool.
func byHand(run ledger.Run, claim Claim) string {
	text := fmt.Sprintf("; to restore the files manually, run this command on the node: sh %s/restore.sh", path.Join(deadman.Dir, run.ID))
	if claim.key() != nil {
		text = fmt.Sprintf("; the record on the node is encrypted, and only `kubectl gpu-fault revert %s` can read it", run.ID)
	}
	if time.Now().Before(run.Until) {
		text += fmt.Sprintf("; the dead man's switch restores the files at %s", run.Until.Format(time.RFC3339))
	}
	return text
}

// unrecorded reports the state of a node that has no record of the run. It compares the files that container runtimes
// load on the node with the checksums in the claim, which are those of the files before and after the change. It
// restores nothing, because the claim is not trusted.
func unrecorded(
	run ledger.Run, nodeName string, claim Claim, restored deadman.Restored, runtime api.Runtime,
) (ledger.State, string, error) {
	if runtime.Instance == nil {
		return "", "", fmt.Errorf(
			"the node has no record of the run, and its files cannot be compared with the changes of the run: %s",
			runtime.Problem,
		)
	}
	now := map[string]string{}
	for _, instance := range append(runtime.Decoys, *runtime.Instance) {
		for _, f := range instance.Files {
			now[f.Path] = patch.Sum(f.Data)
		}
	}
	lines := []string{
		"the node has no record of the run: its dead man's switch has restored the files and removed the record, or nothing was changed",
	}
	if restored.Told {
		lines[0] = "the node's record of the run was missing, but the dead man's switch was still running and restored the files"
	}
	var still []string
	state := ledger.StateReverted
	for _, f := range claim.Files {
		sum, loaded := now[f.Path]
		switch {
		case loaded && sum == f.After:
			still = append(still, fmt.Sprintf("%q", f.Path))
		case loaded && sum == f.Before:
			lines = append(lines, fmt.Sprintf("%q is the same as before the run", f.Path))
		case loaded:
			state = ledger.StateSuperseded
			lines = append(lines, fmt.Sprintf(
				"%q is not restored, because it matches neither its original content nor the run's: another client has changed the file",
				f.Path,
			))
		case f.Before == deadman.Absent:
			lines = append(lines, fmt.Sprintf("%q is not loaded, just as before the run", f.Path))
		default:
			state = ledger.StateSuperseded
			lines = append(lines,
				fmt.Sprintf("%q was not compared, because no container runtime currently loads it", f.Path))
		}
	}
	if restored.Script != "" && len(still) == 0 {
		lines = append(lines,
			fmt.Sprintf("part of the run's record remains in %s: kubectl gpu-fault leftovers --node %s --clean",
				path.Dir(restored.Script), nodeName))
	}
	if len(still) == 0 {
		return state, strings.Join(lines, "\n"), nil
	}
	way := "restore the file from your own copy, then revert again"
	if restored.Script != "" {
		way = "to restore the file from what is left of the record, run this command on the node: sh " + restored.Script
	}
	return "", "",
		fmt.Errorf("the node has no record of the run, so nothing was restored, and %s matches the run's changes according to the ledger: "+
			"%s; if the run is not yours, delete its record: kubectl delete configmap %s -n %s", strings.Join(still, ", "), way,
			run.ID,
			run.Namespace)
}

// verdict returns the final state of the step, with a message about the files.
func verdict(restored deadman.Restored) (ledger.State, string, error) {
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
			theirs = append(theirs, report(f))
		}
	}
	var lines []string
	if len(put) > 0 {
		lines = append(lines, fmt.Sprintf("%s: content, mode, owner and times were restored", strings.Join(put, ", ")))
	}
	if len(over) > 0 {
		lines = append(lines, fmt.Sprintf(
			"%s: changes by another client were overwritten, as requested; content, mode, owner and times were "+
				"restored",
			strings.Join(over, ", "),
		))
	}
	if len(already) > 0 {
		lines = append(lines,
			fmt.Sprintf("%s: content, mode, owner and times were restored%s", strings.Join(already, ", "),
				who(restored)))
	}
	if len(by) > 0 {
		lines = append(lines, fmt.Sprintf(
			"%s: another client has restored the content, but not the mode, owner or time",
			strings.Join(by, ", "),
		))
	}
	lines = append(lines, theirs...)
	switch {
	case len(theirs) > 0:
		return ledger.StateSuperseded, strings.Join(lines, "\n"), nil
	case restored.CRI != nil && !restored.SameConfig: // CRI responds, and loaded the same files as before the fault
		lines = append(lines,
			"the container runtime's configuration is not what it was before the fault, because another change was "+
				"made in the meantime: see `kubectl gpu-fault runtime show`")
	case restored.CRI != nil:
		lines = append(lines, "the container runtime has the same configuration as before")
	}
	return ledger.StateReverted, strings.Join(lines, "\n"), nil
}

// who describes what restored the files before this revert, if anything did.
func who(restored deadman.Restored) string {
	switch by := restored.ByDeadMan; {
	case by != nil:
		return fmt.Sprintf("; the node's dead man's switch restored them at %s (%s)", by.Time.UTC().Format(time.RFC3339),
			by.Cause)
	}
	return "; nothing had been changed"
}

var _ fault.Undoer = Undoer{}

package kernellog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Module is the kernel module that writes records from the kernel itself. It is loaded only while it is writing.
type Module struct {
	// File is the built module. If it is nil, the module is built on the node with the kernel headers in Headers, or
	// with those that are found.
	File    []byte
	Headers string
}

// throughModule writes the records of a result through the module. Before it loads the module, it records in the ledger
// that the module may be loaded.
func (in *Injection) throughModule(ctx context.Context, pod Pod, r fault.Recorder, result *Result) error {
	request := api.WriteModule{Module: in.Module.File, Records: result.request()}
	if request.Module == nil {
		r.Progress("building the kernel module")
		built, err := pod.BuildModule(ctx, api.BuildModule{Headers: in.Module.Headers})
		if err != nil {
			return err
		}
		request.Module = built.Module
	}
	err := r.Save(ctx, func(s *ledger.Step) {
		s.Detail, s.Undo = detail(result.Records), ledger.Undo{Kind: ModuleUndoKind}
	})
	if err != nil {
		return err
	}
	r.Progress(fmt.Sprintf("loading the kernel module and writing %s", count.Of(len(result.Records), "record")))
	var last error // the helper's own error
	err = in.write(ctx, r, result, func(each func([]api.WrittenKmsg)) (written []api.WrittenKmsg, _ error) {
		written, last = pod.WriteModule(ctx, request, each)
		return written, last
	})
	if !isUnloaded(last) {
		return err
	}
	// Save this even if the user has interrupted the run; otherwise, the undo would start another pod unnecessarily.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	forgotten := r.Save(after, func(s *ledger.Step) {
		s.Undo = unwritten()
		if nothingLoaded(last) {
			s.Detail = nil
		}
	})
	if err == nil && forgotten != nil {
		return fmt.Errorf(
			"the records were written and the kernel module was unloaded, but this could not be recorded: %w", forgotten,
		)
	}
	return err
}

// forgetTimeout is the timeout for recording that the module has been unloaded.
const forgetTimeout = 10 * time.Second

// isUnloaded reports whether the helper's last response means that the module is not loaded.
func isUnloaded(err error) bool {
	var refused *api.Error
	return err == nil || errors.As(err, &refused) && refused.Code != api.CodeStays && refused.Code != api.CodeInternal
}

// nothingLoaded reports whether the helper failed before anything was loaded.
func nothingLoaded(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Code.BeforeLoad()
}

// ModuleUndoKind is the ledger.Undo.Kind for a kernel module that may be loaded.
const ModuleUndoKind = "kernel-module"

// ModuleUndoer unloads the kernel module of a run whose client, pod, or helper was killed while the module was loaded.
// Start may be nil if only Describe is called.
type ModuleUndoer struct {
	Log   Undoer
	Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)
	// Progress receives progress messages about a step for the user. It may be nil.
	Progress func(step ledger.Step, text string)
}

var (
	_ fault.Needer     = ModuleUndoer{}
	_ fault.NodeUndoer = ModuleUndoer{}
)

// EntersNode implements fault.NodeUndoer.
func (ModuleUndoer) EntersNode(ledger.Step) bool { return true }

// Needs implements fault.Needer.
func (u ModuleUndoer) Needs(_ ledger.Step, ledgerNamespace string) []fault.Permission {
	return fault.DebugPodPermissions(ledgerNamespace)
}

// Feature implements fault.Needer.
func (ModuleUndoer) Feature() string { return "" }

// Describe implements fault.Undoer.
func (u ModuleUndoer) Describe(ledger.Step) string {
	return "unload the kernel module " + kmod.Name + "; lines in the kernel log cannot be removed"
}

// Undo implements fault.Undoer.
func (u ModuleUndoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	say := func(text string) {
		if u.Progress != nil {
			u.Progress(step, text)
		}
	}
	pod, err := u.Start(ctx, run, step.Target.Name, say)
	if err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand)
	}
	say("unloading the kernel module")
	removed, err := pod.RemoveModule(ctx)
	if err = errors.Join(err, pod.Close(ctx)); err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand)
	}
	state, said, err := u.Log.Undo(ctx, run, step)
	return state, fate(*removed) + "\n" + said, err
}

const byHand = "; to unload the module manually, run this command on the node: rmmod " + kmod.Name

// fate describes what happened to the module.
func fate(removed api.RemovedModule) string {
	switch {
	case removed.Removed:
		return "the kernel module was still loaded and has been unloaded"
	case removed.Other != "":
		return "the kernel module was already unloaded; the currently loaded one belongs to " + removed.Other +
			", and was not unloaded"
	default:
		return "the kernel module is not loaded"
	}
}

var _ fault.Undoer = ModuleUndoer{}

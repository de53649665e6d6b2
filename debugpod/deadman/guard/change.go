//go:build linux

package guard

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Change records a change, starts the dead man's switch that applies it, and passes on the switch's status until the
// change is applied or has failed. If ctx ends before the switch is started, nothing is changed. If ctx ends later, the
// switch still finishes, but its status is not passed on.
func Change(
	ctx context.Context, h Host, run string, change deadman.Change, each func(deadman.Status) error,
) (*deadman.Status, error) {
	if err := deadman.ValidRun(run); err != nil {
		return nil, errorf(CodeFile, "%v", err)
	}
	pod := podProcess(h.Proc)
	if pod.PID == 0 && change.TTL == 0 {
		return nil, errorf(CodeNotArmed,
			"the pod has no main process to watch, so the change would never be restored: specify a TTL")
	}
	r, err := h.prepare(ctx, run, change, pod)
	if err != nil {
		return nil, err
	}
	if err := each(
		deadman.Status{Run: run, Phase: deadman.PhaseRecorded, Files: r.Change.Files, Time: time.Now().UTC()},
	); err != nil {
		return nil, h.undo(r, errorf(CodeNotArmed, "nothing was changed: %v", err))
	}
	if ctx.Err() != nil {
		return nil, h.undo(r, errorf(CodeNotArmed, "nothing was changed: %v", context.Cause(ctx)))
	}
	ended, err := h.start(run)
	if err != nil {
		return nil, h.undo(r, errorf(CodeNotArmed, "nothing was changed, because the dead man's switch did not start: %v", err))
	}
	last, err := h.follow(context.WithoutCancel(ctx), run, ended, each)
	if last != nil && last.Phase == deadman.PhaseFailed && last.PID == 0 ||
		err != nil && last != nil && last.Phase == deadman.PhaseRecorded {
		message := "the dead man's switch exited before it was armed"
		if last.Message != "" {
			message = last.Message
		}
		return nil, h.undo(r, errorf(CodeNotArmed, "nothing was changed: %s%s", message, h.logged(run)))
	}
	return last, err
}

// undo removes the record of a change that was never applied.
func (h Host) undo(r *record, why *Error) error {
	if err := h.erase(r.Run, r); err != nil {
		return errorf(why.Code, "%v; in addition, the record could not be removed: %v", why, err)
	}
	return why
}

// start starts the dead man's switch in its own session, without the standard streams of this process. The channel is
// closed when the switch exits.
func (h Host) start(run string) (<-chan struct{}, error) {
	own, err := h.record(run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	cmd := &exec.Cmd{
		Path: h.Program, Args: []string{argv0(run), "guard", run}, Dir: "/",
		Env:         append([]string{searchPath, "LC_ALL=C"}, h.Env...),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if h.encrypts() {
		key, err := h.keyPipe()
		if err != nil {
			return nil, err
		}
		defer func() { _ = key.Close() }()
		cmd.Stdin = key
	} else {
		log, err := own.openat(logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, err
		}
		defer func() { _ = log.Close() }()
		cmd.Stderr = log
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // reap the process, because a zombie would look alive
		close(ended)
	}()
	return ended, nil
}

func (h Host) logged(run string) string {
	if h.encrypts() { // an encrypted record has no log
		return ""
	}
	raw, err := h.readRecord(run, logFile)
	if err != nil || len(raw) == 0 {
		return ""
	}
	return ": " + cut(string(raw))
}

// Await passes on the status of the run's dead man's switch until the change is applied or has failed.
func Await(ctx context.Context, h Host, run string, each func(deadman.Status) error) (*deadman.Status, error) {
	if err := deadman.ValidRun(run); err != nil {
		return nil, errorf(CodeFile, "%v", err)
	}
	return h.follow(ctx, run, nil, each)
}

// follow polls the status until it is final. ended, if not nil, is closed when the dead man's switch exits.
func (h Host) follow(
	ctx context.Context, run string, ended <-chan struct{}, each func(deadman.Status) error,
) (*deadman.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, h.times.follow)
	defer cancel()
	var told deadman.Phase
	seen := time.Now()
	for {
		// Check for the exit first, so that a status written before the exit is still read.
		gone := h.gone(run, ended)
		s, err := h.status(run)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil,
				errorf(CodeNoRecord, "the node has no record of run %s: the node was not changed, or has already been restored", run)
		case err != nil:
			return nil, asError(CodeFile, err)
		}
		if s.Phase != told && s.Phase != deadman.PhaseRecorded && each != nil {
			told = s.Phase
			_ = each(s.Status) // a client that misses the status can request it again
		}
		switch s.Phase {
		case deadman.PhaseRecorded, deadman.PhaseArmed, deadman.PhaseWritten, deadman.PhaseRestoring:
		default:
			return &s.Status, nil
		}
		if !gone {
			seen = time.Now()
		}
		// A repeated request may arrive before the switch is started.
		if gone && (ended != nil || time.Since(seen) > h.times.start) {
			return &s.Status,
				errorf(CodeGone, "the dead man's switch exited while the change was in phase %s: restore the files%s", s.Phase, h.logged(run))
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return &s.Status, errorf(CodeBusy, "the change is still in phase %s after %v", s.Phase, h.times.follow)
		}
	}
}

func (h Host) gone(run string, ended <-chan struct{}) bool {
	if ended == nil {
		return len(h.guards(run)) == 0
	}
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

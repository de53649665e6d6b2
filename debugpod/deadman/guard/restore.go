//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Restore restores the files of a run from the node's own record. It terminates the run's dead man's switch, and keeps
// the result until a request with Forget arrives. It may be repeated after an interruption, or called concurrently;
// every call returns the same result.
func Restore(ctx context.Context, h Host, run string, ask deadman.Restore) (*deadman.Restored, error) {
	unlock, err := h.lock(ctx, run)
	if errors.Is(err, fs.ErrNotExist) {
		return h.withoutRecord(ctx, run)
	}
	if err != nil {
		return nil, asError(CodeFile, err)
	}
	defer func() { unlock() }()
	r, err := h.load(run)
	if errors.Is(err, fs.ErrNotExist) {
		unlock() // the switch needs the lock
		unlock = func() {}
		return h.withoutRecord(ctx, run)
	}
	if err != nil {
		return nil, asError(CodeFile, err)
	}
	s, err := h.status(run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s = saved{} // the status is only informational
	}
	if ask.Forget && s.Result != nil {
		return s.Result, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	if s.Result != nil {
		return s.Result, nil
	}
	restored := &deadman.Restored{SameConfig: true}
	if !s.Asked && isFinal(s.Phase) {
		last := s.Status
		s.DeadMan, s.Plan = &last, nil
	}
	s.Asked, restored.ByDeadMan = true, s.DeadMan
	if err := h.putAllBack(ctx, r, &s, restored, ask.Overwrite); err != nil {
		s.Phase, s.Message = deadman.PhaseFailed, err.Error()
		_ = h.save(run, &s)
		return restored, err
	}
	h.passed("put back")
	if err := h.endGuards(ctx, run); err != nil {
		return restored, asError(CodeFile, err)
	}
	s.Result, s.Cause = restored, causeAsked
	s.Phase = phaseOf(restored)
	if err := h.save(run, &s); err != nil {
		// The result cannot be saved. All files are restored, so remove the record.
		return restored, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	h.passed("result kept")
	if ask.Forget {
		return restored, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	return restored, nil
}

// withoutRecord handles a restore if the node has no record of the run. No file is changed, because the original
// content is unknown. If a dead man's switch is still running without its record, withoutRecord signals it to restore
// the files now instead of when its TTL expires.
func (h Host) withoutRecord(ctx context.Context, run string) (*deadman.Restored, error) {
	restored := &deadman.Restored{RecordMissing: true, SameConfig: true}
	for until := time.Now().Add(h.times.lock); ; restored.Told = true {
		living := h.guards(run)
		if len(living) == 0 {
			break
		}
		for pid := range living {
			if err := syscall.Kill(pid, restoreNow); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, errorf(CodeFile, "signal the dead man's switch, process %d, to restore the files: %v", pid, err)
			}
		}
		if time.Now().After(until) {
			return nil, errorf(CodeBusy,
				"the dead man's switch of run %s has not finished restoring after %v: try again", run,
				h.times.lock)
		}
		if err := pause(ctx, h.times.tick); err != nil {
			return nil, asError(CodeBusy, err)
		}
	}
	unlock, err := h.lock(ctx, run)
	if errors.Is(err, fs.ErrNotExist) {
		return restored, asErrorOrNil(CodeFile, h.disarmBoot(run))
	}
	if err != nil {
		return nil, asError(CodeFile, err)
	}
	defer unlock()
	if h.has(run, recordFile) {
		return nil, errorf(CodeBusy, "the record of run %s has just been written: try again", run)
	}
	if h.has(run, scriptFile) {
		restored.Script = filepath.Join(h.dir(run), scriptFile) // the script works without the rest of the record
		return restored, nil
	}
	// The directory was created by a helper that terminated before it changed anything.
	return restored, asErrorOrNil(CodeFile, h.erase(run, nil))
}

// putAllBack restores the changed files and restarts the service if necessary. With overwrite, it also restores files
// that were modified since the change. The caller holds the lock.
func (h Host) putAllBack(ctx context.Context, r *record, s *saved, restored *deadman.Restored, overwrite bool) error {
	interrupted := s.Phase != deadman.PhaseWritten && s.Phase != deadman.PhaseApplied
	restored.Files = nil
	was := func(i int) string {
		kept := preparedPath(h.dir(r.Run), r.Places[i], r.Places[i].Before)
		if kept == "" {
			return "it did not exist before"
		}
		if h.encrypts() {
			return "its previous content is encrypted in " + kept
		}
		return "its previous content is in " + kept
	}
	var refused []error
	// A rejected file does not prevent restoring the other files.
	refuse := func(i int, err error) {
		restored.Files[i].Outcome = outcomeRefused
		refused = append(refused, fmt.Errorf("%s was not restored: %w; %s", r.Change.Files[i].Path, err, was(i)))
	}
	for i, f := range r.Change.Files {
		one, err := h.judge(r, i, interrupted, overwrite)
		if err != nil && !isRefusal(err) {
			return errorf(CodeFile, "%s: %v", f.Path, err)
		}
		if one.Outcome == deadman.OutcomeAlready && planned(s.Plan, f.Path) {
			one.Outcome = deadman.OutcomeRestored // restored by an earlier attempt
		}
		restored.Files = append(restored.Files, one)
		if err != nil {
			refuse(i, err)
		}
	}
	s.Phase, s.Plan = deadman.PhaseRestoring, withoutData(restored.Files)
	_ = h.save(r.Run, s) // ignore the error; the disk may be full
	h.passed("planned")

	ours, touched := false, false
	for i, f := range r.Change.Files {
		one := restored.Files[i]
		if one.Outcome == deadman.OutcomeSuperseded || one.Outcome == outcomeRefused {
			continue
		}
		if one.Outcome == deadman.OutcomeAlready {
			ours = true
			continue
		}
		if err := h.putOneBack(r, i, one.Overwritten); isRefusal(err) {
			refuse(i, err)
			continue
		} else if err != nil {
			return errorf(CodeFile, "restore %s: %v; %s", f.Path, err, was(i))
		}
		ours, touched = true, true
		h.passed(fmt.Sprint("put back ", i))
	}
	if r.Change.Service != nil && ours {
		if err := h.bringBack(ctx, r.Change.Service, touched, restored); err != nil {
			return errorf(CodeService, "the files were restored, but %v", err)
		}
	}
	if len(refused) > 0 {
		return errorf(CodeFile, "%v", errors.Join(refused...))
	}
	return nil
}

// outcomeRefused is the outcome for a file that a user other than root could redirect or change, or that is not in the
// record's list. It is never part of a response, because the restore fails.
const outcomeRefused = deadman.Outcome("refused")

// isRefusal reports whether err prevents only one file from being restored.
func isRefusal(err error) bool { return errors.Is(err, errRefused) || errors.Is(err, errNotLoaded) }

func (h Host) judge(r *record, i int, interrupted, overwrite bool) (deadman.RestoredFile, error) {
	f := r.Change.Files[i]
	s, err := h.listedSite(r, i)
	if err != nil {
		return deadman.RestoredFile{Path: f.Path}, err
	}
	defer s.close()
	if err := s.uncover(r.Places[i], overwrite); err != nil {
		return deadman.RestoredFile{Path: f.Path}, err
	}
	return s.judge(f, interrupted, overwrite)
}

// listedSite opens the directories of a file in the record's list.
func (h Host) listedSite(r *record, i int) (*site, error) {
	if err := r.listed(i); err != nil {
		return nil, err
	}
	return h.site(r.Run, r.Places[i])
}

func (h Host) putOneBack(r *record, i int, overwrite bool) error {
	f, p := r.Change.Files[i], r.Places[i]
	s, err := h.listedSite(r, i)
	if err != nil {
		return err
	}
	defer s.close()
	h.passed(fmt.Sprint("putting back ", i))
	now, err := s.file.read()
	if err != nil {
		return err
	}
	if now.sum == f.Before {
		return s.finish(f)
	}
	if !overwrite && now.sum != f.After && !s.isTornOf(f, now.data) {
		return errors.New("another client has just changed the file: try again")
	}
	return s.putBack(f, p)
}

func planned(plan []deadman.RestoredFile, path string) bool {
	return slices.ContainsFunc(plan, func(f deadman.RestoredFile) bool {
		return f.Path == path && f.Outcome == deadman.OutcomeRestored
	})
}

func withoutData(files []deadman.RestoredFile) []deadman.RestoredFile {
	files = slices.Clone(files)
	for i := range files {
		files[i].Now, files[i].Ours, files[i].Edits = nil, nil, nil
	}
	return files
}

// isFinal reports whether a phase is final.
func isFinal(p deadman.Phase) bool {
	return p == deadman.PhaseRestored || p == deadman.PhaseSuperseded || p == deadman.PhaseFailed
}

func phaseOf(r *deadman.Restored) deadman.Phase {
	if slices.ContainsFunc(
		r.Files, func(f deadman.RestoredFile) bool { return f.Outcome == deadman.OutcomeSuperseded },
	) {
		return deadman.PhaseSuperseded
	}
	return deadman.PhaseRestored
}

func asErrorOrNil(code string, err error) error {
	if err == nil {
		return nil
	}
	return asError(code, err)
}

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

// Restore puts back the files of a run by the node's own record, which alone says what to restore. It ends the run's
// dead man, and keeps the result until it is asked to forget it. It may be called again after it was interrupted, and
// by several at once: all get the same result.
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
		unlock() // the dead man wants it
		unlock = func() {}
		return h.withoutRecord(ctx, run)
	}
	if err != nil {
		return nil, asError(CodeFile, err)
	}
	s, err := h.status(run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s = saved{} // it is only a message
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
		// Without room for the result it cannot be kept, and there is nothing left to be done.
		return restored, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	h.passed("result kept")
	if ask.Forget {
		return restored, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	return restored, nil
}

// withoutRecord restores a run that the node has no record of. Nothing else describes the former files, so no file is
// changed. Only a dead man whose record was removed still knows them: it restores now instead of at the end of its
// TTL.
func (h Host) withoutRecord(ctx context.Context, run string) (*deadman.Restored, error) {
	restored := &deadman.Restored{RecordMissing: true, SameConfig: true}
	for until := time.Now().Add(h.times.lock); ; restored.Told = true {
		living := h.guards(run)
		if len(living) == 0 {
			break
		}
		for pid := range living {
			if err := syscall.Kill(pid, restoreNow); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, errorf(CodeFile, "tell the dead man, process %d, to restore: %v", pid, err)
			}
		}
		if time.Now().After(until) {
			return nil, errorf(CodeBusy,
				"the dead man of run %s was told to restore and has not finished after %v: try again", run,
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
		return nil, errorf(CodeBusy, "the record of run %s was written just now: try again", run)
	}
	if h.has(run, scriptFile) {
		restored.Script = filepath.Join(h.dir(run), scriptFile) // the rest of the record is gone, and this still knows
		return restored, nil
	}
	// A directory with neither is of a helper that ended before it changed anything.
	return restored, asErrorOrNil(CodeFile, h.erase(run, nil))
}

// putAllBack puts back what is still ours, with overwrite also what is somebody else's, and has the service take it up.
// Whoever calls it holds the lock.
func (h Host) putAllBack(ctx context.Context, r *record, s *saved, restored *deadman.Restored, overwrite bool) error {
	interrupted := s.Phase != deadman.PhaseWritten && s.Phase != deadman.PhaseApplied
	restored.Files = nil
	was := func(i int) string {
		kept := preparedPath(h.dir(r.Run), r.Places[i], r.Places[i].Before)
		if kept == "" {
			return "it did not exist before"
		}
		return "its former content is in " + kept
	}
	var refused []error
	// The other files are restored all the same.
	refuse := func(i int, err error) {
		restored.Files[i].Outcome = outcomeRefused
		refused = append(refused, fmt.Errorf("%s is not restored: %w; %s", r.Change.Files[i].Path, err, was(i)))
	}
	for i, f := range r.Change.Files {
		one, err := h.judge(r, i, interrupted, overwrite)
		if err != nil && !isRefusal(err) {
			return errorf(CodeFile, "%s: %v", f.Path, err)
		}
		if one.Outcome == deadman.OutcomeAlready && planned(s.Plan, f.Path) {
			one.Outcome = deadman.OutcomeRestored // by an earlier try of ours
		}
		restored.Files = append(restored.Files, one)
		if err != nil {
			refuse(i, err)
		}
	}
	s.Phase, s.Plan = deadman.PhaseRestoring, withoutData(restored.Files)
	_ = h.save(r.Run, s) // on a full disk it goes on without
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
			return errorf(CodeFile, "put back %s: %v; %s", f.Path, err, was(i))
		}
		ours, touched = true, true
		h.passed(fmt.Sprint("put back ", i))
	}
	if r.Change.Service != nil && ours {
		if err := h.bringBack(ctx, r.Change.Service, touched, restored); err != nil {
			return errorf(CodeService, "the files are as they were, but %v", err)
		}
	}
	if len(refused) > 0 {
		return errorf(CodeFile, "%v", errors.Join(refused...))
	}
	return nil
}

// outcomeRefused is the outcome of a file that another user than root could have chosen, or that the record's list
// lacks. No response has it: the restore fails.
const outcomeRefused = deadman.Outcome("refused")

// isRefusal reports whether a file is not to be restored, whereas others are.
func isRefusal(err error) bool { return errors.Is(err, errRefused) || errors.Is(err, errNotLoaded) }

func (h Host) judge(r *record, i int, interrupted, overwrite bool) (deadman.RestoredFile, error) {
	f := r.Change.Files[i]
	s, err := h.listedSite(r, i)
	if err != nil {
		return deadman.RestoredFile{Path: f.Path}, err
	}
	defer s.close()
	return s.judge(f, interrupted, overwrite)
}

// listedSite opens the directories of a file that is in the record's list.
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
		return errors.New("somebody changed it just now: try again")
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

// isFinal reports whether a dead man has said its last word.
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

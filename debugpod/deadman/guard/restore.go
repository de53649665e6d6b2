//go:build linux

package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Restore puts back the files of a run, ends its dead man, and keeps the result until it is asked to forget it. It may be called
// again after it was interrupted, and by several at once: all get the same result.
func Restore(ctx context.Context, h Host, run string, ask deadman.Restore) (*deadman.Restored, error) {
	unlock, err := h.lock(ctx, run)
	if errors.Is(err, fs.ErrNotExist) {
		if ask.Forget {
			return &deadman.Restored{RecordMissing: true, SameConfig: true}, nil
		}
		unlock, err = h.lockNew(ctx, run)
	}
	if err != nil {
		return nil, asError(CodeFile, err)
	}
	defer unlock()
	s, err := h.status(run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s = saved{} // it is only a message
	}
	r, err := h.load(run)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r = nil
	case err != nil:
		return nil, asError(CodeFile, err)
	}
	if ask.Forget && s.Result != nil {
		return s.Result, asErrorOrNil(CodeFile, h.erase(run, r))
	}
	if s.Result != nil {
		return s.Result, nil
	}
	restored := &deadman.Restored{SameConfig: true, RecordMissing: r == nil}
	if r == nil {
		if r, err = byLedger(run, ask); err != nil {
			return nil, asError(CodeFile, err)
		}
		for i, p := range r.Places {
			if now, err := read(p.Real); err == nil && now.sum == r.Change.Files[i].Before {
				continue // nothing of this run is in it
			}
			if other := h.claimant(run, p.Real); other != "" {
				_ = os.Remove(h.dir(run)) // made for the lock
				return nil, errorf(CodeExists, "run %s has changed %s since, and will put it back: revert that one", other, r.Change.Files[i].Path)
			}
		}
	} else if err := compare(r.Change.Files, ask.Files); err != nil {
		return nil, err
	}
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
	s.Result, s.Cause = restored, "asked to"
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

// lockNew makes a directory for the status of a restore that has no record. Where that cannot be, it goes without.
func (h Host) lockNew(ctx context.Context, run string) (func(), error) {
	if err := os.MkdirAll(h.dir(run), 0o700); err != nil {
		return func() {}, nil
	}
	return h.lock(ctx, run)
}

// byLedger is the record that the ledger's data give.
func byLedger(run string, ask deadman.Restore) (*record, error) {
	r := &record{Version: recordVersion, Run: run, Change: deadman.Change{Files: ask.Files, Service: ask.Service}}
	for _, f := range ask.Files {
		real, _, err := follow(f.Path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if err != nil { // its directory is gone, or a link dangles: reading it will find nothing
			real = f.Path
		}
		p := place{Real: real}
		if _, names, err := meta(real); err == nil {
			p.InPlace = names > 1 || isMountPoint(real)
		}
		r.Places = append(r.Places, p)
	}
	return r, nil
}

// compare refuses to touch anything when the node's record is not about what the ledger has: somebody tampered with one of them.
func compare(record, ledger []deadman.File) error {
	if len(ledger) == 0 {
		return nil
	}
	for _, l := range ledger {
		i := slices.IndexFunc(record, func(f deadman.File) bool { return f.Path == l.Path })
		if i < 0 {
			return errorf(CodeMismatch, "the node's record does not have %s, which the ledger has; nothing was touched", l.Path)
		}
		f := record[i]
		if f.Before != l.Before || f.After != l.After {
			return errorf(CodeMismatch, "the node's record and the ledger disagree about %s: before %s and %s, after %s and %s; nothing was touched",
				l.Path, shown(f.Before), shown(l.Before), shown(f.After), shown(l.After))
		}
		if !slices.EqualFunc(f.Edits, l.Edits, func(a, b patch.Edit) bool {
			return a.Offset == b.Offset && bytes.Equal(a.Old, b.Old) && bytes.Equal(a.New, b.New)
		}) {
			return errorf(CodeMismatch, "the node's record and the ledger disagree about the edits of %s; nothing was touched", l.Path)
		}
	}
	if len(record) != len(ledger) {
		return errorf(CodeMismatch, "the node's record has %d files, the ledger %d; nothing was touched", len(record), len(ledger))
	}
	return nil
}

// putAllBack puts back what is still ours, with overwrite also what is somebody else's, and has the service take it up. Whoever calls it holds
// the lock.
func (h Host) putAllBack(ctx context.Context, r *record, s *saved, restored *deadman.Restored, overwrite bool) error {
	interrupted := s.Phase != deadman.PhaseWritten && s.Phase != deadman.PhaseApplied
	restored.Files = nil
	for i, f := range r.Change.Files {
		one, err := judge(f, r.Places[i], interrupted, overwrite)
		if err != nil {
			return errorf(CodeFile, "%s: %v", f.Path, err)
		}
		if one.Outcome == deadman.OutcomeAlready && planned(s.Plan, f.Path) {
			one.Outcome = deadman.OutcomeRestored // by an earlier try of ours
		}
		restored.Files = append(restored.Files, one)
	}
	s.Phase, s.Plan = deadman.PhaseRestoring, withoutData(restored.Files)
	_ = h.save(r.Run, s) // on a full disk it goes on without
	h.passed("planned")

	ours, touched := false, false
	for i, f := range r.Change.Files {
		one := restored.Files[i]
		if one.Outcome == deadman.OutcomeSuperseded {
			continue
		}
		ours = true
		if one.Outcome == deadman.OutcomeAlready {
			continue
		}
		touched = true
		if err := h.putOneBack(f, r.Places[i], one.Overwritten); err != nil {
			return errorf(CodeFile, "put back %s: %v; how it was lies in %s", f.Path, err, or(r.Places[i].Before, "no place: the ledger has the change"))
		}
		h.passed(fmt.Sprint("put back ", i))
	}
	if r.Change.Service == nil || !ours {
		return nil
	}
	if err := h.bringBack(ctx, r.Change.Service, touched, restored); err != nil {
		return errorf(CodeService, "the files are as they were, but %v", err)
	}
	return nil
}

func (h Host) putOneBack(f deadman.File, p place, overwrite bool) error {
	now, err := read(p.Real)
	if err != nil {
		return err
	}
	if now.sum == f.Before {
		return finish(f, p)
	}
	if !overwrite && now.sum != f.After && !isTornOf(f, p, now.data) {
		return errors.New("somebody changed it just now: try again")
	}
	return putBack(f, p)
}

func planned(plan []deadman.RestoredFile, path string) bool {
	return slices.ContainsFunc(plan, func(f deadman.RestoredFile) bool {
		return f.Path == path && f.Outcome == deadman.OutcomeRestored
	})
}

func withoutData(files []deadman.RestoredFile) []deadman.RestoredFile {
	files = slices.Clone(files)
	for i := range files {
		files[i].Now, files[i].Ours = nil, nil
	}
	return files
}

// isFinal is whether a dead man has said its last word.
func isFinal(p deadman.Phase) bool {
	return p == deadman.PhaseRestored || p == deadman.PhaseSuperseded || p == deadman.PhaseFailed
}

func phaseOf(r *deadman.Restored) deadman.Phase {
	if slices.ContainsFunc(r.Files, func(f deadman.RestoredFile) bool { return f.Outcome == deadman.OutcomeSuperseded }) {
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

//go:build linux

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// recordVersion changes whenever a field of record changes its meaning.
const recordVersion = 1

// record is record.json: what a dead man of this or another release must know to put everything back.
type record struct {
	Version int            `json:"version"`
	Run     string         `json:"run"`
	Change  deadman.Change `json:"change"` // with the attributes of the files as they were
	Places  []place        `json:"places"` // of Change.Files
	// Pod is the main process of the pod; its end is a reason to put back. Zero: there is none to watch.
	Pod process `json:"pod,omitzero"`
}

// place is where a file really lies, and where its two versions wait.
type place struct {
	Real string `json:"real"` // the path with links followed
	// Before and After are the prepared files; empty where there is none. They lie where they can be renamed to Real, unless InPlace.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// InPlace: the file has several names or is mounted, so it is overwritten; or nothing may be put beside it.
	InPlace bool `json:"inPlace,omitempty"`
}

// saved is status.json.
type saved struct {
	deadman.Status
	// Plan is what a restore that has begun means to do. It tells the files that were put back before an interruption from those
	// that were never ours.
	Plan []deadman.RestoredFile `json:"plan,omitempty"`
	// Asked: the plan is of a Restore, not of the dead man. DeadMan is then what that had said before.
	Asked   bool            `json:"asked,omitempty"`
	DeadMan *deadman.Status `json:"deadMan,omitempty"`
	// Result is what was answered to a Restore, until it is forgotten.
	Result *deadman.Restored `json:"result,omitempty"`
}

const (
	recordFile = "record.json"
	statusFile = "status.json"
	scriptFile = "restore.sh"
	logFile    = "log"
)

func (h Host) dir(run string) string { return filepath.Join(h.Dir, run) }

// load returns a run's record. fs.ErrNotExist is in the error where there is none.
func (h Host) load(run string) (*record, error) {
	path := filepath.Join(h.dir(run), recordFile)
	if _, err := os.Lstat(path); err != nil {
		return nil, err
	}
	real, err := h.resolve(path)
	if err != nil {
		return nil, fmt.Errorf("the record %s is not root's own: %w", h.dir(run), err)
	}
	raw, err := os.ReadFile(real)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("the record %s is damaged: %w", h.dir(run), err)
	}
	if r.Version != recordVersion || r.Run != run || len(r.Places) != len(r.Change.Files) {
		return nil, fmt.Errorf("the record %s is not one that this release understands: put back by hand with: sh %s", h.dir(run), filepath.Join(h.dir(run), scriptFile))
	}
	if err := r.Change.Validate(); err != nil {
		return nil, fmt.Errorf("the record %s is damaged: %w", h.dir(run), err)
	}
	return &r, nil
}

func (h Host) status(run string) (saved, error) {
	var s saved
	raw, err := os.ReadFile(filepath.Join(h.dir(run), statusFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the status in %s is damaged: %w", h.dir(run), err)
	}
	return s, nil
}

// save writes the status, with the time. It is only a message to others: whoever puts back goes on without it.
func (h Host) save(run string, s *saved) error {
	s.Run, s.Time = run, time.Now().UTC()
	raw, err := encode(s)
	if err != nil {
		return err
	}
	return writeWhole(filepath.Join(h.dir(run), statusFile), raw, 0o600)
}

// lock waits until nobody else works on the record. fs.ErrNotExist is in the error when there is none, also when it vanished meanwhile.
func (h Host) lock(ctx context.Context, run string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, h.times.lock)
	defer cancel()
	d, err := os.Open(h.dir(run))
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w", h.dir(run), err)
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			_ = d.Close()
			return nil, errorf(CodeBusy, "somebody else works on the record %s for longer than %v: try again", h.dir(run), h.times.lock)
		}
	}
	mine, err := d.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = os.Stat(h.dir(run)); err == nil && !os.SameFile(mine, now) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return func() { _ = d.Close() }, nil
}

// erase removes a record and all that belongs to it. What it needs goes last, so that it can be called again.
func (h Host) erase(run string, r *record) error {
	var failed []error
	if r != nil {
		for _, p := range r.Places {
			prepared, _ := filepath.Glob(filepath.Join(filepath.Dir(p.Real), preparedName(run, "*", "*")))
			for _, path := range append(prepared, p.Before, p.After) {
				if path != "" {
					failed = append(failed, remove(path))
				}
			}
		}
	}
	failed = append(failed, h.disarmBoot(run))
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if err := os.RemoveAll(h.dir(run)); err != nil {
		return err
	}
	_ = syncDir(h.Dir)
	_ = os.Remove(h.Dir) // only when it is empty
	return nil
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

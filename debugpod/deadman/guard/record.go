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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// recordVersion is incremented when the meaning of a field of record changes.
const recordVersion = 2

// record is the content of record.json. It contains everything that a dead man's switch of any release needs for the
// restore.
type record struct {
	Version int    `json:"version"`
	Run     string `json:"run"`
	// Change includes the original attributes of the files, and the service as found by the helper.
	Change deadman.Change `json:"change"`
	Places []place        `json:"places"` // one for each file in Change.Files
	// Loaded are the files that the node's container runtimes loaded before the change, as found by the helper, and the
	// files that the change creates. No other file is changed or restored. The list cannot be determined later, because
	// the change may break the runtime's configuration or remove an import from it.
	Loaded []loaded `json:"loaded"`
	// Pod is the main process of the pod. Its termination triggers a restore. If Pod is zero, no process is watched.
	Pod process `json:"pod,omitzero"`
}

// loaded is a file that a container runtime loads.
type loaded struct {
	Path string `json:"path"`
	Real string `json:"real"` // path with links resolved
}

// place contains the real path of a file and the names of its prepared files.
type place struct {
	Real string `json:"real"` // path with links resolved
	// Before and After are the names of the prepared files. They are empty if there are none. A prepared file is in the
	// directory of Real if its name begins with a dot, and in the record's directory otherwise.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// InPlace means that the file is overwritten instead of replaced, because it has several names, is mounted, or
	// cannot have a prepared file in its directory.
	InPlace bool `json:"inPlace,omitempty"`
}

// saved is the content of status.json.
type saved struct {
	deadman.Status
	// Plan is the plan of a restore in progress. It distinguishes the files restored before an interruption from files
	// that were never changed.
	Plan []deadman.RestoredFile `json:"plan,omitempty"`
	// Asked reports whether the plan comes from a Restore request instead of the dead man's switch. DeadMan is then the
	// last status of the switch.
	Asked   bool            `json:"asked,omitempty"`
	DeadMan *deadman.Status `json:"deadMan,omitempty"`
	// Result is the response to a Restore request, kept until the client requests to forget it.
	Result *deadman.Restored `json:"result,omitempty"`
}

const (
	recordFile = "record.json"
	statusFile = "status.json"
	scriptFile = "restore.sh"
	logFile    = "log"
)

func (h Host) dir(run string) string { return filepath.Join(h.Dir, run) }

// records opens the directory of all records.
func (h Host) records() (*dir, error) { return h.directory(h.Dir, followLinks) }

// record opens the directory of a run's record. The error wraps fs.ErrNotExist if the record does not exist.
func (h Host) record(run string) (*dir, error) {
	all, err := h.records()
	if err != nil {
		return nil, h.notOurs(run, err)
	}
	defer func() { _ = all.Close() }()
	d, err := all.child(run)
	return d, h.notOurs(run, err)
}

func (h Host) notOurs(run string, err error) error {
	if errors.Is(err, errRefused) {
		return fmt.Errorf("the record %s is not owned exclusively by root: %w", h.dir(run), err)
	}
	return err
}

// runs returns the names in the directory of all records.
func (h Host) runs() ([]string, error) {
	all, err := h.records()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.Close() }()
	return all.names()
}

// has reports whether the record of a run contains a file with this name.
func (h Host) has(run, name string) bool {
	d, err := h.record(run)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	f, err := d.openat(name, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// readRecord reads a file of a run's record.
func (h Host) readRecord(run, name string) ([]byte, error) {
	d, err := h.record(run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	raw, err := file{d, name}.readAll()
	if err != nil {
		return nil, h.notOurs(run, err)
	}
	return h.decrypt(run, name, raw)
}

// load returns a run's record. The error wraps fs.ErrNotExist if the record does not exist.
func (h Host) load(run string) (*record, error) {
	raw, err := h.readRecord(run, recordFile)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("the record %s is damaged: %w", h.dir(run), err)
	}
	if r.Version != recordVersion || r.Run != run || len(r.Places) != len(r.Change.Files) {
		return nil, fmt.Errorf("this release does not support the format of the record %s: restore it manually with: sh %s",
			h.dir(run), filepath.Join(h.dir(run), scriptFile))
	}
	if err := errors.Join(r.Change.Validate(), r.validatePlaces()); err != nil {
		return nil, fmt.Errorf("the record %s is damaged: %w", h.dir(run), err)
	}
	return &r, nil
}

func (r *record) validatePlaces() error {
	for i, p := range r.Places {
		for what, name := range map[string]string{"before": p.Before, "after": p.After} {
			if name != "" && name != keptName(what, i) && name != preparedName(r.Run, what, fmt.Sprint(i)) {
				return fmt.Errorf("%q is not the name of a prepared file", name)
			}
		}
		if !filepath.IsAbs(p.Real) || filepath.Clean(p.Real) != p.Real {
			return fmt.Errorf("%q is not an absolute, clean path", p.Real)
		}
	}
	return nil
}

// errNotLoaded means that a record specifies a file that is not in its Loaded list.
var errNotLoaded = errors.New("according to the run's record, the kubelet's containerd does not load this file")

// listed returns an error unless the Loaded list of the record contains file i, with the same path and real path.
func (r *record) listed(i int) error {
	if slices.Contains(r.Loaded, loaded{r.Change.Files[i].Path, r.Places[i].Real}) {
		return nil
	}
	return errNotLoaded
}

// preparedPath returns the full path of a prepared file. dir is the directory of its record. The path is empty if
// the file does not exist.
func preparedPath(dir string, p place, name string) string {
	switch {
	case name == "":
		return ""
	case isBeside(name):
		return filepath.Join(filepath.Dir(p.Real), name)
	}
	return filepath.Join(dir, name)
}

// isBeside reports whether a prepared file is in the directory of its target.
func isBeside(name string) bool { return strings.HasPrefix(name, ".") }

func (h Host) status(run string) (saved, error) {
	var s saved
	raw, err := h.readRecord(run, statusFile)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the status in %s is damaged: %w", h.dir(run), err)
	}
	return s, nil
}

// save writes the status with the current time. The status is informational, so a restore continues if save fails.
func (h Host) save(run string, s *saved) error {
	s.Run, s.Time = run, time.Now().UTC()
	d, err := h.record(run)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return h.writeRecord(d, run, statusFile, s)
}

// writeRecord writes a file in a run's record, whose directory is d.
func (h Host) writeRecord(d *dir, run, name string, content any) error {
	raw, err := encode(content)
	if err != nil {
		return err
	}
	if raw, err = h.encrypt(run, name, raw); err != nil {
		return err
	}
	return file{d, name}.writeWhole(raw, 0o600)
}

// lock locks the record and waits if another process has locked it. The error wraps fs.ErrNotExist if the record does
// not exist or is removed in the meantime.
func (h Host) lock(ctx context.Context, run string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, h.times.lock)
	defer cancel()
	at, err := h.record(run)
	if err != nil {
		return nil, err
	}
	d, err := at.reading()
	_ = at.Close()
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
			return nil, errorf(CodeBusy, "another process has been using the record %s for more than %v: try again",
				h.dir(run), h.times.lock)
		}
	}
	if err := h.isStill(run, d); err != nil {
		_ = d.Close()
		return nil, err
	}
	return func() { _ = d.Close() }, nil
}

// isStill returns an error unless d is still the directory of the run's record.
func (h Host) isStill(run string, d *os.File) error {
	mine, err := d.Stat()
	if err != nil {
		return err
	}
	at, err := h.record(run)
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	now, err := at.Stat()
	if err == nil && !os.SameFile(mine, now) {
		err = fs.ErrNotExist
	}
	return err
}

// erase removes a record and all its artifacts. It removes the record itself last, so that it can be called again after
// a failure.
func (h Host) erase(run string, r *record) error {
	var failed []error
	if r != nil {
		for _, p := range r.Places {
			if isBeside(p.Before) || isBeside(p.After) {
				failed = append(failed, h.erasePrepared(run, filepath.Dir(p.Real)))
			}
		}
	}
	failed = append(failed, h.disarmBoot(run))
	if err := errors.Join(failed...); err != nil {
		return err
	}
	all, err := h.records()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return h.notOurs(run, err)
	}
	defer func() { _ = all.Close() }()
	if err := all.removeAll(run); err != nil {
		return err
	}
	_ = all.sync()
	h.eraseRecords()
	return nil
}

// erasePrepared removes the run's prepared files from a directory.
func (h Host) erasePrepared(run, path string) error {
	d, err := h.directory(path, refuseLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	names, err := d.names()
	failed := []error{err}
	for _, name := range names {
		if is, err := filepath.Match(preparedName(run, "*", "*"), name); is && err == nil {
			failed = append(failed, file{d, name}.remove())
		}
	}
	return errors.Join(failed...)
}

// eraseRecords removes the directory of all records if it is empty.
func (h Host) eraseRecords() {
	if parent, err := h.directory(filepath.Dir(h.Dir), followLinks); err == nil {
		_ = parent.rmdir(filepath.Base(h.Dir))
		_ = parent.Close()
	}
}

// pause waits for d. It returns an error if ctx ends first.
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

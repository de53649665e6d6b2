//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// prepare makes the record of a change, with everything that is needed to make the change and to take it back, and syncs it. When
// that fails, nothing is left of it. No file is changed.
func (h Host) prepare(run string, change deadman.Change, pod process) (_ *record, err error) {
	r := &record{Version: recordVersion, Run: run, Change: change, Pod: pod}
	r.Change.Files = append([]deadman.File(nil), change.Files...)
	if err := os.MkdirAll(h.Dir, 0o755); err != nil {
		return nil, errorf(CodeFile, "make a place for the record: %v", err)
	}
	if err := os.Mkdir(h.dir(run), 0o700); errors.Is(err, fs.ErrExist) {
		return nil, errorf(CodeExists, "the node has a record of run %s already, in %s: put it back first", run, h.dir(run))
	} else if err != nil {
		_ = os.Remove(h.Dir)
		return nil, errorf(CodeFile, "make the record: %v", err)
	}
	defer func() {
		if err != nil {
			err = asError(CodeFile, err)
			if left := h.erase(run, r); left != nil {
				err = errorf(err.(*Error).Code, "%v; and its record could not be removed: %v", err, left)
			}
		}
	}()
	if err := h.unclaimed(r); err != nil {
		return nil, err
	}
	for i := range r.Change.Files {
		// Grown before it is filled: what a failure leaves is then known.
		r.Places = append(r.Places, place{})
		if err := h.prepareFile(run, i, &r.Change.Files[i], &r.Places[i]); err != nil {
			return nil, err
		}
	}
	raw, err := encode(r)
	if err != nil {
		return nil, err
	}
	if err := writeWhole(filepath.Join(h.dir(run), recordFile), raw, 0o600); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	if err := writeWhole(filepath.Join(h.dir(run), scriptFile), []byte(h.script(r)), 0o700); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	if change.BootRestore {
		if err := h.armBoot(r); err != nil {
			return nil, fmt.Errorf("arrange for the restore at boot: %w", err)
		}
	}
	if err := h.save(run, &saved{Status: deadman.Status{Phase: deadman.PhaseRecorded, Files: r.Change.Files}}); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	if err := syncDir(h.Dir); err != nil {
		return nil, err
	}
	return r, syncDir(filepath.Dir(h.Dir))
}

// unclaimed refuses a change to what another run has changed, whose ledger may be another one: that run's end would not know what to put
// back, and this one's would bring its fault back.
func (h Host) unclaimed(r *record) error {
	for _, f := range r.Change.Files {
		real, _, err := h.leads(f.Path)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if other := h.claimant(r.Run, real); other != "" {
			return errorf(CodeExists, "run %s has changed %s, and not put it back yet: see `kubectl gpu-fault list -A`, and revert it first", other, f.Path)
		}
	}
	return nil
}

// claimant is another run whose record has the file; empty when there is none.
func (h Host) claimant(run, real string) string {
	entries, _ := os.ReadDir(h.Dir)
	for _, e := range entries {
		if e.Name() == run || deadman.ValidRun(e.Name()) != nil {
			continue
		}
		other, err := h.load(e.Name())
		if err != nil {
			continue
		}
		for _, p := range other.Places {
			if p.Real == real && !h.abandoned(other.Run) {
				return other.Run
			}
		}
	}
	return ""
}

// abandoned is whether a run was recorded and never begun: its helper died before the dead man was armed, so that it changed nothing, and
// nobody is left who will.
func (h Host) abandoned(run string) bool {
	s, err := h.status(run)
	return err == nil && s.Phase == deadman.PhaseRecorded && time.Since(s.Time) > 10*h.times.start && len(h.guards(run)) == 0
}

func (h Host) prepareFile(run string, i int, f *deadman.File, p *place) error {
	real, link, err := h.leads(f.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	p.Real = real
	was, err := read(real)
	if err != nil {
		return err
	}
	if was.sum != f.Before {
		return errorf(CodeChanged, "%s changed between read and write: it has the sum %s, not %s", f.Path, shown(was.sum), shown(f.Before))
	}
	will, err := patch.Apply(was.data, f.Edits)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if sum := sumOf(will, f.After); sum != f.After {
		return fmt.Errorf("%s: its edits give the sum %s, not %s", f.Path, shown(sum), shown(f.After))
	}
	f.Meta = nil
	var names uint64 = 1
	if f.Before != deadman.Absent {
		m, n, err := meta(real)
		if err != nil {
			return err
		}
		m.Link = link
		f.Meta, names = &m, n
	}
	beside, err := h.placeOf(run, real)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	p.InPlace = f.Before != deadman.Absent && f.After != deadman.Absent && (names > 1 || beside == "" || isMountPoint(real))
	if beside == "" || p.InPlace {
		beside = h.dir(run)
	}
	name := func(what string) string {
		if beside == h.dir(run) {
			return filepath.Join(beside, fmt.Sprintf("%s-%d", what, i))
		}
		return filepath.Join(beside, preparedName(run, what, fmt.Sprint(i)))
	}
	if f.Before != deadman.Absent {
		p.Before = name("before")
		kept := *f.Meta
		if p.InPlace { // overwriting leaves them alone, and the record's file system may not know them
			kept.Xattrs = nil
		}
		if err := create(p.Before, was.data, &kept); err != nil {
			return fmt.Errorf("keep %s as it is: %w", f.Path, err)
		}
	}
	if f.After != deadman.Absent {
		p.After = name("after")
		like := deadman.Meta{Mode: 0o644}
		if f.Meta != nil {
			like = *f.Meta
		}
		if p.InPlace {
			like.Xattrs = nil
		}
		if err := createAfter(p.After, will, like, f.Meta != nil); err != nil {
			return fmt.Errorf("prepare the change of %s: %w", f.Path, err)
		}
	}
	return nil
}

// preparedName is what a prepared file is called beside the one that it is for. No glob that names an ending matches it, and who looks
// for it finds it.
func preparedName(run, what, number string) string {
	return fmt.Sprintf(".%s-%s-%s%s", run, what, number, preparedSuffix)
}

const preparedSuffix = ".gpu-fault"

// createAfter writes the changed file. It looks like the one it replaces, but is new: its time is its own.
func createAfter(path string, data []byte, like deadman.Meta, replaces bool) error {
	if err := create(path, data, nil); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !replaces {
		return os.Chmod(path, 0o644)
	}
	like.ModTime = info.ModTime()
	return setMetaOf(path, like)
}

func sumOf(data []byte, wanted string) string {
	if wanted == deadman.Absent && len(data) == 0 {
		return deadman.Absent
	}
	return patch.Sum(data)
}

func shown(sum string) string {
	if sum == deadman.Absent {
		return "of no file"
	}
	return sum
}

// placeOf returns the directory in which files can wait to be renamed to path: the record's, or where that is on another mount, the
// file's own. It is empty when neither will do: a program may load whatever lies in a drop-in directory.
func (h Host) placeOf(run, path string) (string, error) {
	dir := filepath.Dir(path)
	ours, err := mountOf(h.dir(run))
	if err != nil {
		return "", err
	}
	theirs, err := mountOf(dir)
	if err != nil {
		return "", err
	}
	if theirs.readOnly {
		return "", fmt.Errorf("%s is on a read-only file system: it cannot be changed", path)
	}
	switch {
	case ours == theirs:
		return h.dir(run), nil
	case strings.HasSuffix(dir, ".d"):
		return "", nil
	}
	return dir, nil
}

// mount tells mounts apart: files can be renamed only within one.
type mount struct {
	id       uint64
	device   uint64
	readOnly bool
}

func mountOf(path string) (mount, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != nil {
		return mount{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	m := mount{device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	if st.Mask&unix.STATX_MNT_ID != 0 { // Linux 5.8
		m.id = st.Mnt_id
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return mount{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	m.readOnly = fs.Flags&unix.ST_RDONLY != 0
	return m, nil
}

// isMountPoint is whether something is mounted on a file. Before Linux 5.8 nobody tells, and the rename will.
func isMountPoint(path string) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
		return false
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func asError(code string, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return errorf(code, "%v", err)
}

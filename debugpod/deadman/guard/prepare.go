//go:build linux

package guard

import (
	"context"
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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// prepare writes and syncs the record of a change, which contains all data for applying and reverting the change. It
// changes no other file. If it fails, it removes the record.
func (h Host) prepare(ctx context.Context, run string, change deadman.Change, pod process) (_ *record, err error) {
	if h.encrypts() && change.BootRestore {
		return nil, errorf(CodeNotArmed, "nothing was changed: an encrypted record cannot be restored at boot")
	}
	r := &record{Version: recordVersion, Run: run, Change: change, Pod: pod}
	r.Change.Files = slices.Clone(change.Files)
	found, err := h.allow(ctx, r)
	if err != nil {
		return nil, err
	}
	own, err := h.makeRecord(run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	defer func() {
		if err != nil {
			err = asError(CodeFile, err)
			if left := h.erase(run, r); left != nil {
				err = errorf(err.(*Error).Code, "%v; in addition, the record could not be removed: %v", err, left)
			}
		}
	}()
	if err := h.unclaimed(r, found); err != nil {
		return nil, err
	}
	for i := range r.Change.Files {
		// Append before preparing the file, so that it can be cleaned up after a failure.
		r.Places = append(r.Places, place{Real: found[i].real})
		if err := h.prepareFile(own, i, &r.Change.Files[i], &r.Places[i], found[i]); err != nil {
			return nil, err
		}
	}
	if err := h.writeRecord(own, run, recordFile, r); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	if !h.encrypts() {
		if err := (file{own, scriptFile}).writeWhole([]byte(h.script(r, own.Name())), 0o700); err != nil {
			return nil, fmt.Errorf("write the record: %w", err)
		}
	}
	if change.BootRestore {
		if err := h.armBoot(r); err != nil {
			return nil, fmt.Errorf("set up the restore at boot: %w", err)
		}
	}
	if err := h.save(
		run, &saved{Status: deadman.Status{Phase: deadman.PhaseRecorded, Files: r.Change.Files}},
	); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return r, h.syncRecords()
}

// makeRecord creates the directory of a run's record, and opens it.
func (h Host) makeRecord(run string) (*dir, error) {
	parent, err := h.directory(filepath.Dir(h.Dir), followLinks)
	if err != nil {
		return nil, errorf(CodeFile, "create the directory for records: %v", err)
	}
	defer func() { _ = parent.Close() }()
	if err := parent.mkdir(filepath.Base(h.Dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errorf(CodeFile, "create the directory for records: %v", err)
	}
	all, err := h.records()
	if err != nil {
		return nil, errorf(CodeFile, "create the directory for records: %v", err)
	}
	defer func() { _ = all.Close() }()
	if err := all.mkdir(run, 0o700); errors.Is(err, fs.ErrExist) {
		return nil,
			errorf(CodeExists, "the node already has a record of run %s in %s: restore that run first", run, h.dir(run))
	} else if err != nil {
		h.eraseRecords()
		return nil, errorf(CodeFile, "create the record: %v", err)
	}
	own, err := all.child(run)
	if err != nil {
		_ = all.rmdir(run)
		return nil, errorf(CodeFile, "create the record: %v", err)
	}
	return own, nil
}

// syncRecords syncs the directory of all records and its parent.
func (h Host) syncRecords() error {
	for _, path := range []string{h.Dir, filepath.Dir(h.Dir)} {
		d, err := h.directory(path, followLinks)
		if err != nil {
			return err
		}
		err = d.sync()
		_ = d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// unclaimed returns an error if another run has changed one of the files. If this run changed that file too, the other
// run could not restore it, and restoring this run would reinstate the other run's fault.
func (h Host) unclaimed(r *record, found []target) error {
	for i, f := range r.Change.Files {
		other, encrypted := h.claimant(r.Run, found[i].real)
		switch {
		case other == "":
		case encrypted:
			return errorf(CodeExists,
				"run %s may have changed %s, but its record is encrypted: see `kubectl gpu-fault list -A`, and revert that run first",
				other, f.Path)
		default:
			return errorf(CodeExists,
				"run %s has changed %s and has not restored it yet: see `kubectl gpu-fault list -A`, and revert that run first",
				other, f.Path)
		}
	}
	return nil
}

// claimant returns another run whose record contains the file, or may contain it because the record is encrypted. It
// returns "" if there is none.
func (h Host) claimant(run, real string) (other string, encrypted bool) {
	h.Key = nil // other runs have other keys
	names, _ := h.runs()
	for _, name := range names {
		if name == run || deadman.ValidRun(name) != nil {
			continue
		}
		other, err := h.load(name)
		if errors.Is(err, errEncrypted) {
			return name, true
		}
		if err != nil {
			continue
		}
		for _, p := range other.Places {
			if p.Real == real && !h.abandoned(other.Run) {
				return other.Run, false
			}
		}
	}
	return "", false
}

// abandoned reports whether a run was recorded but never started, because its helper terminated before arming the
// switch. Such a run has not changed anything.
func (h Host) abandoned(run string) bool {
	s, err := h.status(run)
	return err == nil && s.Phase == deadman.PhaseRecorded && time.Since(s.Time) > 10*h.times.start &&
		len(h.guards(run)) == 0
}

func (h Host) prepareFile(own *dir, i int, f *deadman.File, p *place, found target) error {
	h.passed(fmt.Sprint("resolved ", i))
	at, err := h.file(p.Real, refuseLinks)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	defer at.close()
	was, err := at.read()
	if err != nil {
		return err
	}
	if was.sum != f.Before {
		return errorf(CodeChanged, "%s changed between reading and writing it: the checksum is %s, not %s", f.Path,
			shown(was.sum), shown(f.Before))
	}
	will, err := patch.Apply(was.data, f.Edits)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if sum := sumOf(will, f.After); sum != f.After {
		return fmt.Errorf("%s: its edits produce the checksum %s, not %s", f.Path, shown(sum), shown(f.After))
	}
	f.Meta = nil
	var names uint64 = 1
	if f.Before != deadman.Absent {
		m, n, err := at.meta()
		if err != nil {
			return err
		}
		m.Link = found.link
		f.Meta, names = &m, n
	}
	wait, err := waitsIn(own, at.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	p.InPlace = f.Before != deadman.Absent && f.After != deadman.Absent &&
		(names > 1 || wait == nil || at.isMountPoint())
	if wait == nil || p.InPlace {
		wait = own
	}
	prepared := func(what string) file {
		if wait == own {
			return file{own, keptName(what, i)}
		}
		return file{wait, preparedName(filepath.Base(own.Name()), what, fmt.Sprint(i))}
	}
	if f.Before != deadman.Absent {
		copied := prepared("before")
		p.Before = copied.name
		kept, data := *f.Meta, was.data
		if h.encrypts() { // an encrypted file is never renamed into place; see site.putBack
			copied, kept = file{own, keptName("before", i)}, *ours(0o600)
			p.Before = copied.name
			if data, err = h.encrypt(filepath.Base(own.Name()), copied.name, data); err != nil {
				return err
			}
			if err := copied.reserve(len(was.data)); err != nil {
				return fmt.Errorf("reserve space for %s: %w", f.Path, err)
			}
		}
		if p.InPlace { // an overwrite does not change the attributes, and the record's file system may not support them
			kept.Xattrs = nil
		}
		if err := copied.create(data, &kept); err != nil {
			return fmt.Errorf("keep the original %s: %w", f.Path, err)
		}
	}
	if f.After != deadman.Absent && !(p.InPlace && h.encrypts()) {
		changed := prepared("after")
		p.After = changed.name
		like := *ours(0o644)
		if f.Meta != nil {
			like = *f.Meta
		}
		like.ModTime = time.Time{} // a new file has a new modification time
		if p.InPlace {
			like.Xattrs = nil
		}
		if err := changed.create(will, &like); err != nil {
			return fmt.Errorf("prepare the change to %s: %w", f.Path, err)
		}
	}
	return nil
}

// keptName returns the name of a prepared file in the record.
func keptName(what string, i int) string { return fmt.Sprintf("%s-%d", what, i) }

// preparedName returns the name of a prepared file in the directory of its target. Globs such as *.conf do not match
// it, and preparedRun recognizes it.
func preparedName(run, what, number string) string {
	return fmt.Sprintf(".%s-%s-%s%s", run, what, number, preparedSuffix)
}

const preparedSuffix = ".gpu-fault"

func sumOf(data []byte, wanted string) string {
	if wanted == deadman.Absent && len(data) == 0 {
		return deadman.Absent
	}
	return patch.Sum(data)
}

func shown(sum string) string {
	if sum == deadman.Absent {
		return "of a missing file"
	}
	return sum
}

// waitsIn returns the directory that holds prepared files until they are renamed into the target directory. It is the
// record's directory, or the target directory itself if the record is on another mount. It is nil if neither is
// suitable, because a program may load every file in a drop-in directory.
func waitsIn(own, at *dir) (*dir, error) {
	ours, err := mountOf(own)
	if err != nil {
		return nil, err
	}
	theirs, err := mountOf(at)
	if err != nil {
		return nil, err
	}
	if theirs.readOnly {
		return nil, fmt.Errorf("%s cannot be changed, because it is on a read-only file system", at.Name())
	}
	switch {
	case ours == theirs:
		return own, nil
	case strings.HasSuffix(at.Name(), ".d"):
		return nil, nil
	}
	return at, nil
}

// mount identifies a mount. Files can be renamed only within one mount.
type mount struct {
	id       uint64
	device   uint64
	readOnly bool
}

func mountOf(d *dir) (mount, error) {
	var st unix.Statx_t
	if err := unix.Statx(
		int(d.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st,
	); err != nil {
		return mount{}, &os.PathError{Op: "statx", Path: d.Name(), Err: err}
	}
	m := mount{device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	if st.Mask&unix.STATX_MNT_ID != 0 { // Linux 5.8
		m.id = st.Mnt_id
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &fs); err != nil {
		return mount{}, &os.PathError{Op: "statfs", Path: d.Name(), Err: err}
	}
	m.readOnly = fs.Flags&unix.ST_RDONLY != 0
	return m, nil
}

// isMountPoint reports whether a file is a mount point. Linux before 5.8 does not report this; the rename then fails.
func (f file) isMountPoint() bool {
	var st unix.Statx_t
	if err := unix.Statx(int(f.dir.Fd()), f.name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
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

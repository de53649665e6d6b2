//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// site contains one file of a change and its prepared files, each in its open directory.
type site struct {
	host          Host
	run           string
	file          file
	before, after file // the directory is nil if they do not exist
	record        *dir // nil if the record no longer exists
}

// site opens the directories of a file. It follows no links, because place.Real contains none. A missing directory is
// not an error: the file does not exist in this case.
func (h Host) site(run string, p place) (*site, error) {
	f, err := h.file(p.Real, refuseLinks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		f = file{name: p.Real}
	}
	s := &site{host: h, run: run, file: f}
	if s.record, err = h.record(run); err != nil {
		s.record = nil // the prepared files are lost, but was and write do not need them
	}
	s.before, s.after = s.prepared(p.Before), s.prepared(p.After)
	return s, nil
}

func (s *site) prepared(name string) file {
	switch {
	case name == "":
		return file{}
	case isBeside(name):
		return file{s.file.dir, name}
	}
	return file{s.record, name}
}

func (s *site) close() {
	s.file.close()
	file{dir: s.record}.close()
}

// apply changes a file. It first checks that the file still matches the record.
func (s *site) apply(f deadman.File, p place) error {
	now, err := s.file.read()
	if err != nil {
		return err
	}
	if now.sum != f.Before {
		return errorf(CodeChanged, "%s changed between reading and writing it", f.Path)
	}
	if f.After == deadman.Absent {
		return s.file.remove()
	}
	if !p.InPlace {
		err := s.file.replace(s.after)
		if err == nil || !cannotRename(err) {
			return err
		}
	}
	will, err := patch.Apply(now.data, f.Edits)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if f.Before == deadman.Absent {
		return s.file.create(will, ours(0o644))
	}
	return s.file.overwrite(will, nil)
}

// cannotRename reports whether a rename failed because of a mount: the directories are on different mounts, or the file
// is a mount point.
func cannotRename(err error) bool { return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) }

// uncover returns an error if another file has been mounted over the file since the change, because a restore would
// then affect the wrong file. With overwrite, it unmounts that other file.
func (s *site) uncover(p place, overwrite bool) error {
	for range 10 { // several files may be mounted
		if p.InPlace || s.file.dir == nil || !s.file.isMountPoint() {
			return nil
		}
		if !overwrite {
			break
		}
		path := fmt.Sprintf("/proc/self/fd/%d/%s", s.file.dir.Fd(), s.file.name)
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount the file mounted over %s: %w", s.file.path(), err)
		}
	}
	return fmt.Errorf("another file is mounted over the file: run umount %s on the node, then revert again: %w", s.file.path(),
		errRefused)
}

// judge determines how to restore a file. interrupted means that an earlier restore or the change itself may have been
// interrupted. overwrite means that files that have been modified since the change are also restored.
func (s *site) judge(f deadman.File, interrupted, overwrite bool) (deadman.RestoredFile, error) {
	r := deadman.RestoredFile{Path: f.Path}
	now, err := s.file.read()
	if err != nil {
		return r, err
	}
	switch {
	case now.sum == f.Before:
		r.Outcome, r.SameMeta = deadman.OutcomeAlready, f.Before == deadman.Absent || s.file.hasMeta(f.Meta)
	case now.sum == f.After:
		r.Outcome = deadman.OutcomeRestored
	case interrupted && now.sum != deadman.Absent && s.isTornOf(f, now.data):
		r.Outcome = deadman.OutcomeRestored
	case overwrite && s.isKept(f):
		r.Outcome, r.Overwritten = deadman.OutcomeRestored, true
	default:
		r.Outcome, r.Deleted = deadman.OutcomeSuperseded, now.sum == deadman.Absent
		if !r.Deleted && !now.tooLarge && len(now.data) <= maxNow {
			r.Now = now.data
		}
		r.Ours, r.Before, r.After, r.Edits = s.made(f), f.Before, f.After, f.Edits
	}
	return r, nil
}

// kept returns the prepared copy of the original file.
func (s *site) kept(f deadman.File) ([]byte, bool) {
	if s.host.encrypts() {
		raw, err := s.before.readAll()
		if err != nil {
			return nil, false
		}
		data, err := s.host.decrypt(s.run, s.before.name, raw)
		return data, err == nil && f.Before != deadman.Absent && patch.Sum(data) == f.Before
	}
	copied, err := s.before.read()
	return copied.data, err == nil && f.Before != deadman.Absent && copied.sum == f.Before
}

// isKept reports whether the original content is known regardless of the file's current content.
func (s *site) isKept(f deadman.File) bool {
	_, is := s.kept(f)
	return is || f.Before == deadman.Absent
}

// made returns the content of a file after the change, or nil if it is unknown or larger than maxNow.
func (s *site) made(f deadman.File) []byte {
	before, is := s.kept(f)
	if !is && f.Before != deadman.Absent {
		return nil
	}
	after, err := patch.Apply(before, f.Edits)
	if err != nil || len(after) > maxNow {
		return nil
	}
	return after
}

// maxNow is the maximum size in bytes of the file content in a RestoredFile.
const maxNow = 256 << 10

// isTornOf reports whether data is the result of an interrupted overwrite with the prepared content.
func (s *site) isTornOf(f deadman.File, data []byte) bool {
	before, err := s.was(f)
	if err != nil {
		return false
	}
	after, err := patch.Apply(before, f.Edits)
	return err == nil && sumOf(after, f.After) == f.After && isTorn(data, before, after)
}

// was returns the original content, from the prepared copy or by reverting the edits.
func (s *site) was(f deadman.File) ([]byte, error) {
	if f.Before == deadman.Absent {
		return nil, nil
	}
	if data, is := s.kept(f); is {
		return data, nil
	}
	now, err := s.file.read()
	if err != nil {
		return nil, err
	}
	if now.sum != f.After {
		return nil, errors.New("the file's content is not what the change produced")
	}
	data, err := patch.Apply(now.data, patch.Invert(f.Edits))
	if err != nil {
		return nil, fmt.Errorf("revert the change: %w", err)
	}
	if patch.Sum(data) != f.Before {
		return nil, errors.New("reverting the change does not produce the previous content")
	}
	return data, nil
}

// putBack restores the content and the attributes of a changed file.
func (s *site) putBack(f deadman.File, p place) error {
	if f.Before == deadman.Absent {
		return s.file.remove()
	}
	meta := f.Meta
	if meta == nil {
		return errors.New("the original attributes are unknown")
	}
	data, err := s.was(f)
	if err != nil {
		return err
	}
	if _, is := s.kept(f); is && !p.InPlace {
		ready := s.before
		if s.host.encrypts() {
			ready, err = s.unpack(data, *meta)
			s.host.passed("unpacked")
		}
		if err == nil {
			err = s.file.replace(ready)
		}
		if err == nil || !s.host.encrypts() && !cannotRename(err) {
			return err
		}
	}
	return s.file.write(data, *meta, p.InPlace)
}

// write writes content that no prepared file contains.
func (f file) write(data []byte, meta deadman.Meta, inPlace bool) error {
	now, err := f.read()
	if err != nil {
		return err
	}
	if !inPlace || now.sum == deadman.Absent {
		beside := file{f.dir, "." + f.name + preparedSuffix} // found by leftFiles
		_ = beside.unlink()
		err := beside.create(data, &meta)
		if err == nil {
			if err = f.replace(beside); err == nil {
				return nil
			}
			_ = beside.unlink()
		}
		if !cannotRename(err) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	if now.sum == deadman.Absent {
		return f.create(data, &meta)
	}
	return f.overwrite(data, &meta)
}

// finish restores the attributes of a file whose content was restored by an earlier attempt.
func (s *site) finish(f deadman.File) error {
	if f.Before == deadman.Absent || f.Meta == nil {
		return nil
	}
	return s.file.setMeta(*f.Meta)
}

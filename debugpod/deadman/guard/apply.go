//go:build linux

package guard

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// apply changes a file. It looks again at what is there first: the record was made a moment ago.
func apply(f deadman.File, p place) error {
	now, err := read(p.Real)
	if err != nil {
		return err
	}
	if now.sum != f.Before {
		return errorf(CodeChanged, "%s changed between read and write", f.Path)
	}
	if f.After == deadman.Absent {
		return remove(p.Real)
	}
	if !p.InPlace {
		err := replaceAll(p.After, p.Real)
		if err == nil || !cannotRename(err) {
			return err
		}
	}
	will, err := patch.Apply(now.data, f.Edits)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if f.Before == deadman.Absent {
		return create(p.Real, will, &deadman.Meta{Mode: 0o644, UID: os.Getuid(), GID: os.Getgid()})
	}
	return overwrite(p.Real, will, nil)
}

// cannotRename is whether only the place is to blame: another mount, or a mount on the file itself.
func cannotRename(err error) bool { return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) }

// judge says what is to become of a file. Interrupted is whether an earlier restore, or the change itself, may have been cut short; overwrite
// is whether also what somebody has changed meanwhile is put back.
func judge(f deadman.File, p place, interrupted, overwrite bool) (deadman.RestoredFile, error) {
	r := deadman.RestoredFile{Path: f.Path}
	now, err := read(p.Real)
	if err != nil {
		return r, err
	}
	switch {
	case now.sum == f.Before:
		r.Outcome, r.SameMeta = deadman.OutcomeAlready, f.Before == deadman.Absent || hasMeta(p.Real, f.Meta)
	case now.sum == f.After:
		r.Outcome = deadman.OutcomeRestored
	case interrupted && now.sum != deadman.Absent && isTornOf(f, p, now.data):
		r.Outcome = deadman.OutcomeRestored
	case overwrite && isKept(f, p):
		r.Outcome, r.Overwritten = deadman.OutcomeRestored, true
	default:
		r.Outcome, r.Deleted = deadman.OutcomeSuperseded, now.sum == deadman.Absent
		if !r.Deleted && !now.tooLarge && len(now.data) <= maxNow {
			r.Now = now.data
		}
		r.Ours, r.Before, r.After, r.Edits = ours(f, p), f.Before, f.After, f.Edits
	}
	return r, nil
}

// isKept is whether the content of before is known, whatever lies in its place now.
func isKept(f deadman.File, p place) bool {
	if f.Before == deadman.Absent {
		return true
	}
	kept, err := read(p.Before)
	return p.Before != "" && err == nil && kept.sum == f.Before
}

// ours is what the change had made of a file; nil where that is not known any more.
func ours(f deadman.File, p place) []byte {
	var before []byte
	if f.Before != deadman.Absent {
		kept, err := read(p.Before)
		if p.Before == "" || err != nil || kept.sum != f.Before {
			return nil
		}
		before = kept.data
	}
	after, err := patch.Apply(before, f.Edits)
	if err != nil || len(after) > maxNow {
		return nil
	}
	return after
}

// maxNow is the largest content of somebody else's that is reported, in bytes.
const maxNow = 256 << 10

// isTornOf is whether an interrupted overwriting left these data. It takes both contents from where they wait.
func isTornOf(f deadman.File, p place, data []byte) bool {
	before, err := was(f, p)
	if err != nil {
		return false
	}
	after, err := patch.Apply(before, f.Edits)
	return err == nil && sumOf(after, f.After) == f.After && isTorn(data, before, after)
}

// was returns the content as it was before: the prepared copy, or else the change taken back.
func was(f deadman.File, p place) ([]byte, error) {
	if f.Before == deadman.Absent {
		return nil, nil
	}
	if p.Before != "" {
		if kept, err := read(p.Before); err == nil && kept.sum == f.Before {
			return kept.data, nil
		}
	}
	now, err := read(p.Real)
	if err != nil {
		return nil, err
	}
	if now.sum != f.After {
		return nil, errors.New("it is not as we left it")
	}
	data, err := patch.Apply(now.data, patch.Invert(f.Edits))
	if err != nil {
		return nil, fmt.Errorf("take the change back: %w", err)
	}
	if patch.Sum(data) != f.Before {
		return nil, errors.New("taking the change back does not give what was there before")
	}
	return data, nil
}

// putBack gives a file that is ours its content and its attributes of before.
func putBack(f deadman.File, p place) error {
	if f.Before == deadman.Absent {
		return remove(p.Real)
	}
	meta := f.Meta
	if meta == nil {
		return errors.New("nobody knows its attributes")
	}
	data, err := was(f, p)
	if err != nil {
		return err
	}
	if !p.InPlace && p.Before != "" {
		if kept, err := read(p.Before); err == nil && kept.sum == f.Before {
			err := replaceAll(p.Before, p.Real)
			if err == nil || !cannotRename(err) {
				return err
			}
		}
	}
	return write(p.Real, data, *meta, p.InPlace)
}

// write puts content where nothing is prepared for it.
func write(path string, data []byte, meta deadman.Meta, inPlace bool) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return create(path, data, &meta)
	}
	if !inPlace {
		beside := path + preparedSuffix
		_ = os.Remove(beside)
		err := create(beside, data, &meta)
		if err == nil {
			if err = replaceAll(beside, path); err == nil {
				return nil
			}
			_ = os.Remove(beside)
		}
		if !cannotRename(err) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	return overwrite(path, data, &meta)
}

// finish makes sure of the attributes of a file that we put back in an earlier try.
func finish(f deadman.File, p place) error {
	if f.Before == deadman.Absent || f.Meta == nil {
		return nil
	}
	return setMetaOf(p.Real, *f.Meta)
}

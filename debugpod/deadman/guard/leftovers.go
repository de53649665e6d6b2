//go:build linux

package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Leftovers returns the artifacts that this program and other fault injectors left on the node. If clean is set, it
// removes the artifacts, except for those of the runs in keep and of records whose files have not been restored.
func Leftovers(ctx context.Context, h Host, clean bool, keep []string) ([]deadman.Leftover, error) {
	found := []deadman.Leftover{}
	busy := map[string]bool{} // runs whose other leftovers must be kept
	for _, run := range keep {
		busy[run] = true
	}
	runs, err := h.runs()
	if errors.Is(err, errRefused) {
		found = append(found, deadman.Leftover{Kind: deadman.LeftoverRecord, Path: h.Dir, Problem: err.Error()})
	} else if err != nil {
		return nil, asError(CodeFile, err)
	}
	known := map[string]bool{}
	for _, run := range runs {
		l, prepared := h.leftRecord(run)
		if clean && !busy[run] {
			h.cleanRecord(ctx, run, &l)
		}
		if !l.Removed {
			busy[run] = true
		}
		found = append(found, l)
		for _, path := range prepared {
			known[path] = true // removed together with their record
		}
	}
	for pid, run := range h.guards("") {
		l := deadman.Leftover{Kind: deadman.LeftoverDeadMan, Path: fmt.Sprint("pid ", pid), Run: run}
		if clean && !busy[run] {
			// A switch without a record still has the original state in memory. Do not kill it, so that it can restore
			// the files.
			l.Problem = "this dead man's switch has no record, but will restore the files when its TTL expires; to " +
				"restore them now, run: kill " +
				fmt.Sprint(pid)
		}
		found = append(found, l)
	}
	found = append(found, h.leftFiles(clean, busy, known)...)
	for _, path := range h.Foreign {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		l := deadman.Leftover{Kind: deadman.LeftoverForeign, Path: path}
		if clean {
			removed(&l, h.removeAll(path))
		}
		found = append(found, l)
	}
	if clean {
		h.eraseRecords()
	}
	slices.SortStableFunc(found, func(a, b deadman.Leftover) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
}

// removeAll removes a path recursively. It removes a link, not the target.
func (h Host) removeAll(path string) error {
	parent, err := h.directory(filepath.Dir(path), followLinks)
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	return parent.removeAll(filepath.Base(path))
}

func removed(l *deadman.Leftover, err error) {
	l.Removed = err == nil
	if err != nil {
		l.Problem = err.Error()
	}
}

// leftRecord returns the record with this name in Dir, and the paths of its prepared files.
func (h Host) leftRecord(run string) (deadman.Leftover, []string) {
	l := deadman.Leftover{Kind: deadman.LeftoverRecord, Path: h.dir(run), Run: run}
	if s, err := h.status(run); err == nil {
		l.Status = &s.Status
	}
	r, err := h.load(run)
	if err != nil {
		return l, nil
	}
	var prepared []string
	for _, p := range r.Places {
		prepared = append(prepared, preparedPath(h.dir(run), p, p.Before), preparedPath(h.dir(run), p, p.After))
	}
	return l, prepared
}

// cleanRecord removes a record if all its files have their original content.
func (h Host) cleanRecord(ctx context.Context, run string, l *deadman.Leftover) {
	if deadman.ValidRun(run) != nil {
		l.Problem = "not removed, because the name is not a run ID"
		return
	}
	unlock, err := h.lock(ctx, run)
	if err != nil {
		l.Problem = err.Error()
		return
	}
	defer unlock()
	r, err := h.load(run)
	switch {
	case errors.Is(err, fs.ErrNotExist): // contains only the result of a restore that found no record
		r = nil
	case err != nil:
		l.Problem = err.Error()
		return
	}
	if r != nil {
		if why := h.changed(r); why != "" {
			l.Problem = why + ": restore the files with revert, or on the node with: sh " +
				filepath.Join(h.dir(run), scriptFile)
			if l.Status != nil {
				l.Status.Message = strings.TrimPrefix(l.Status.Message+"; "+l.Problem, "; ")
			}
			return
		}
	}
	if err := h.endGuards(ctx, run); err != nil {
		l.Problem = err.Error()
		return
	}
	removed(l, h.erase(run, r))
}

// changed describes a file that is in the record but does not have its original content. It returns "" if all files
// have their original content.
func (h Host) changed(r *record) string {
	for i, f := range r.Change.Files {
		now, err := h.sumAt(r.Places[i].Real)
		switch {
		case err != nil:
			return err.Error()
		case now == f.After:
			return f.Path + " is still changed"
		case now != f.Before:
			return f.Path + " matches neither its original nor its changed content"
		}
	}
	return ""
}

// sumAt returns the checksum of the file at a path.
func (h Host) sumAt(real string) (string, error) {
	f, err := h.file(real, refuseLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return deadman.Absent, nil
	}
	if err != nil {
		return "", err
	}
	defer f.close()
	now, err := f.read()
	return now.sum, err
}

// removeFile removes the file at a path. It removes a link, not the target.
func (h Host) removeFile(path string) error {
	d, err := h.directory(filepath.Dir(path), followLinks)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return file{d, filepath.Base(path)}.remove()
}

// leftFiles returns the boot units and the prepared files on the node.
func (h Host) leftFiles(clean bool, busy, known map[string]bool) []deadman.Leftover {
	var found []deadman.Leftover
	units, _ := filepath.Glob(filepath.Join(h.Units, "gpu-fault-*.service"))
	for _, path := range units {
		run := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "gpu-fault-"), ".service")
		l := deadman.Leftover{Kind: deadman.LeftoverBootUnit, Path: path, Run: run}
		if clean && !busy[run] {
			removed(&l, h.disarmBoot(run))
		}
		found = append(found, l)
	}
	for _, dir := range h.configDirs() {
		files, _ := filepath.Glob(filepath.Join(dir, ".*"+preparedSuffix))
		for _, path := range files {
			run := preparedRun(filepath.Base(path))
			if known[path] && busy[run] {
				continue
			}
			l := deadman.Leftover{Kind: deadman.LeftoverPrepared, Path: path, Run: run}
			if clean && !busy[run] {
				removed(&l, h.removeFile(path))
			}
			found = append(found, l)
		}
	}
	return found
}

// preparedRun returns the run of a prepared file with a name such as ".RUN-before-0.gpu-fault".
func preparedRun(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "."), preparedSuffix)
	for _, what := range []string{"-before-", "-after-"} {
		if i := strings.LastIndex(name, what); i >= 0 {
			return name[:i]
		}
	}
	return ""
}

// configDirs returns the configuration directories of container runtimes, which may contain prepared files.
func (h Host) configDirs() []string {
	var all []string
	for _, pattern := range h.Configs {
		dirs, _ := filepath.Glob(pattern)
		all = append(all, dirs...)
	}
	return all
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// workshop is what the jobs of one run share.
type workshop struct {
	ctx    context.Context
	root   string // of the repository
	dir    string // for logs, programs and the state of clusters
	plugin string // path of the program under test
	lock   *os.File

	programs map[string]string // paths, by package: what build has built
	pace     *pace
	seating  sync.Mutex // held by the lane that waits for seats
}

// newWorkshop makes .suite in the repository's root. The error says so if another run uses this machine's clusters.
func newWorkshop(ctx context.Context, lanes int) (*workshop, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	root := strings.TrimSpace(string(out))
	w := &workshop{
		ctx: ctx, root: root, dir: filepath.Join(root, ".suite"),
		plugin: filepath.Join(root, "bin", "kubectl-gpu_fault"), programs: map[string]string{},
		pace: newPace(lanes),
	}
	if _, err := os.Stat(w.plugin); err != nil {
		return nil, fmt.Errorf("%w: `make build` makes it", err)
	}
	if err := hasRoom(ctx, root); err != nil {
		return nil, err
	}
	const lock = "/run/lock/gpu-fault-suite.lock"
	if err := os.MkdirAll(filepath.Dir(lock), 0o755); err != nil {
		return nil, err
	}
	if w.lock, err = os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(w.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.New("another run of the tests uses this machine's clusters: wait until it has finished")
	}
	logs := filepath.Join(w.dir, "logs")
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755)); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *workshop) close() { _ = w.lock.Close() }

// build builds what the jobs run, before any of them begins: go commands that run side by side would compile the same
// packages again and again. What is up to date from an earlier run is not linked again.
func (w *workshop) build(jobs []job, log *os.File) error {
	b := w.bay(nil, log)
	// Of test programs: go names them by the last element of their package, so some need another folder
	folders := map[string][]string{}
	crash := false
	for _, j := range jobs {
		crash = crash || j.site == wide
		if j.pkg == "" || slices.Contains(slices.Concat(slices.Collect(maps.Values(folders))...), j.pkg) {
			continue
		}
		for number := 1; ; number++ {
			folder := filepath.Join(w.dir, "programs", strconv.Itoa(number))
			if !slices.ContainsFunc(
				folders[folder], func(pkg string) bool { return filepath.Base(pkg) == filepath.Base(j.pkg) },
			) {
				folders[folder] = append(folders[folder], j.pkg)
				break
			}
		}
	}
	run := func(env string, args ...string) error {
		cmd := b.command("go", args...)
		cmd.Env = append(cmd.Env, env)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build the tests: %w", err)
		}
		return nil
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		args := slices.Concat([]string{"test", "-c", "-tags", clusterTags}, raceBuild(), []string{"-o", folder + "/"},
			folders[folder])
		if err := errors.Join(os.MkdirAll(folder, 0o755), run("CGO_ENABLED=1", args...)); err != nil {
			return err
		}
		for _, pkg := range folders[folder] {
			w.programs[pkg] = filepath.Join(folder, filepath.Base(pkg)+".test")
		}
	}
	if !crash {
		return nil
	}
	w.programs[crashPackage] = filepath.Join(w.dir, "programs", "crash")
	return run("CGO_ENABLED=0", "build", "-gcflags=all=-l", "-gcflags=std=", "-o", w.programs[crashPackage],
		crashPackage)
}

// bay makes the place where one job runs.
func (w *workshop) bay(l *lane, log *os.File) *bay {
	b := &bay{workshop: w, lane: l, log: log}
	b.command = func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(w.ctx, name, args...)
		cmd.Dir = w.root
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = os.Environ()
		if l != nil {
			cmd.Env = append(cmd.Env, l.env()...)
		}
		// A session of its own, so that an interrupt ends all that it has started.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		cmd.WaitDelay = 20 * time.Second
		return cmd
	}
	return b
}

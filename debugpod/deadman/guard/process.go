//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process identifies a process on the node by its PID and its start time.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// lives reports whether the process is still running.
func (p process) lives(proc string) bool {
	start, state, err := stat(proc, p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// stat returns the start time and the state of a process. The process name, in parentheses, may contain any character.
func stat(proc string, pid int) (start uint64, state byte, err error) {
	raw, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const stateField, startField = 0, 19 // fields 3 and 22, counted from 1 (see proc_pid_stat(5))
	if len(fields) <= startField {
		return 0, 0, errors.New("the stat file is too short")
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return start, fields[stateField][0], err
}

func processes(proc string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all, nil
}

// podProcess returns the oldest other process in the cgroups of this process, which is the container's main process. It
// returns the zero value if there is none.
func podProcess(proc string) process {
	own, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return process{}
	}
	pids, _ := processes(proc)
	var oldest process
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		group, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
		if err != nil || string(group) != string(own) {
			continue
		}
		start, _, err := stat(proc, pid)
		if err == nil && (oldest.PID == 0 || start < oldest.Start) {
			oldest = process{pid, start}
		}
	}
	return oldest
}

// argv0 returns the process name of a run's dead man's switch.
func argv0(run string) string { return "gpu-fault-deadman " + run }

// guards returns the runs of the dead man's switches on the node, by PID. If run is not empty, it returns only the
// switches of that run.
func (h Host) guards(run string) map[int]string {
	found := map[int]string{}
	pids, _ := processes(h.Proc)
	for _, pid := range pids {
		raw, err := os.ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), "cmdline"))
		if err != nil || pid == os.Getpid() {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		if len(args) == 3 && args[1] == "guard" && args[0] == argv0(args[2]) && (run == "" || run == args[2]) &&
			h.isOnHost(pid) {
			found[pid] = args[2]
		}
	}
	return found
}

// isOnHost reports whether a process runs in the host mount namespace and as the user of this process, as a dead man's
// switch does. This is necessary because a process in a container can choose any name.
func (h Host) isOnHost(pid int) bool {
	dir := filepath.Join(h.Proc, strconv.Itoa(pid))
	mounts, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
	ours, ownErr := os.Readlink(filepath.Join(h.Proc, "self/ns/mnt"))
	info, statErr := os.Stat(dir)
	if err != nil || ownErr != nil || statErr != nil || mounts != ours {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// endGuards terminates the dead man's switches of a run whose files have already been restored.
func (h Host) endGuards(ctx context.Context, run string) error {
	for until := time.Now().Add(5 * time.Second); ; {
		found := h.guards(run)
		if len(found) == 0 {
			return nil
		}
		for pid := range found {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("terminate the dead man's switch, process %d: %w", pid, err)
			}
			if time.Now().After(until) {
				return fmt.Errorf("the dead man's switch, process %d, has not exited", pid)
			}
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

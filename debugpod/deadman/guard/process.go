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

// process is one process of the node, told from later ones with its number by the time of its start.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// lives reports whether the process is still there, and has not ended.
func (p process) lives(proc string) bool {
	start, state, err := stat(proc, p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// stat reads when a process started, and its state. Its name, in parentheses, may hold anything.
func stat(proc string, pid int) (start uint64, state byte, err error) {
	raw, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const stateField, startField = 0, 19 // the third and the 22nd, counted from 1 (proc_pid_stat(5))
	if len(fields) <= startField {
		return 0, 0, errors.New("a short stat file")
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

// podProcess returns the oldest process in this one's cgroups, but for itself: the main process of its container. Zero:
// there is none.
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

// argv0 returns what a dead man is called, so that it can be found.
func argv0(run string) string { return "gpu-fault-deadman " + run }

// guards returns the dead men of the node, by the number of their process; of one run, or of all when it is empty.
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

// isOnHost reports whether a process runs in the node's own mount namespace and as this process's user, as dead men
// do. A process in a container can choose any name.
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

// endGuards ends the dead men of a run, which have nothing to do any more.
func (h Host) endGuards(ctx context.Context, run string) error {
	for until := time.Now().Add(5 * time.Second); ; {
		found := h.guards(run)
		if len(found) == 0 {
			return nil
		}
		for pid := range found {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end the dead man, process %d: %w", pid, err)
			}
			if time.Now().After(until) {
				return fmt.Errorf("the dead man, process %d, does not end", pid)
			}
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// watcher waits for all processes of the sandbox, as its first process has to, and tells the caller which programs
// they execute.
type watcher struct {
	main   int // the program that the sandbox is for
	tell   *json.Encoder
	traced bool
	set    bool         // the trace options are set, which all later processes inherit
	began  map[int]bool // processes whose program was told
	start  time.Time
}

// events are the moments at which the kernel stops a traced process. Threads are traced, because they start processes.
const events = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// wait returns the exit code of the main program.
func (w *watcher) wait() (int, error) {
	w.start = time.Now()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return -1, fmt.Errorf("wait for the program: %w", err)
		case status.Exited(), status.Signaled():
			code := status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
			w.ended(pid, code)
			if pid == w.main {
				return code, nil
			}
		case status.Stopped() && w.traced:
			w.resume(pid, status)
		}
	}
}

// resume lets a stopped process go on, after telling what it executes. Signals are passed on, except for those that
// would stop it: nobody could tell such a stop from that of ptrace.
func (w *watcher) resume(pid int, status unix.WaitStatus) {
	signal := status.StopSignal()
	if !w.set && pid == w.main { // the program has been executed
		w.set = unix.PtraceSetOptions(pid, events) == nil
		w.executed(pid)
		signal = 0
	}
	switch signal {
	case unix.SIGTRAP:
		if status.TrapCause() == unix.PTRACE_EVENT_EXEC {
			w.executed(pid)
		}
		if status.TrapCause() > 0 {
			signal = 0
		}
	case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		signal = 0
	}
	_ = unix.PtraceCont(pid, int(signal)) // fails if it was killed meanwhile, which wait sees
}

func (w *watcher) executed(pid int) {
	w.began[pid] = true
	ran := Ran{
		PID: pid, Parent: parent(pid), Program: program(pid), Args: commandLine(pid), At: time.Since(w.start), Exit: -1,
	}
	_ = w.tell.Encode(event{Began: &ran})
}

func (w *watcher) ended(pid, code int) {
	if w.began[pid] {
		delete(w.began, pid)
		_ = w.tell.Encode(event{Ended: &Ran{PID: pid, At: time.Since(w.start), Exit: code}})
	}
}

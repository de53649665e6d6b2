package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// watcher waits for all processes in the sandbox, as the first process in a PID namespace must, and reports to the
// caller which programs they execute.
type watcher struct {
	main   int // PID of the program for which the sandbox was created
	tell   *json.Encoder
	traced bool
	set    bool         // whether the trace options are set; all later processes inherit them
	began  map[int]bool // processes whose program has been reported
	start  time.Time
}

// events are the events at which the kernel stops a traced process. Threads are also traced, because they can start
// processes.
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

// resume reports the program that a stopped process executes, and resumes the process. Signals are passed on, except
// for those that would stop the process, because such a stop could not be distinguished from one caused by ptrace.
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
	_ = unix.PtraceCont(pid, int(signal)) // fails if the process was killed in the meantime, which wait detects
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

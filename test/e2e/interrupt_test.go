//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// started is a command that goes on in the background.
type started struct {
	*exec.Cmd
	stdout, stderr lockedBuffer
}

// start begins a burst that takes half a minute.
func (e *env) start() *started {
	e.t.Helper()
	s := &started{Cmd: e.command("xid", "63", e.worker.Name, "--yes", "--count", "300", "--interval", "100ms")}
	s.Stdout, s.Stderr = &s.stdout, &s.stderr
	if err := s.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = s.Process.Kill(); _, _ = s.Process.Wait() })
	return s
}

// phase waits until the ledger's only run is in the phase.
func (e *env) phase(want ledger.Phase) ledger.Run {
	e.t.Helper()
	var run ledger.Run
	cluster.Eventually(e.t, patience, "the run is "+string(want), func() (bool, string) {
		runs := e.runs("--all")
		if len(runs) != 1 {
			return false, fmt.Sprintf("%d runs", len(runs))
		}
		run = runs[0]
		return run.Phase == want, string(run.Phase)
	})
	return run
}

func TestCtrlCCleansUp(t *testing.T) {
	t.Parallel()
	e := setup(t)
	s := e.start()
	e.phase(ledger.Applying)
	for range 2 { // as timeout(1) does, to the process and to its group: that is one interrupt
		if err := s.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Wait()
	if code := s.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d after Ctrl-C, wanted 130; stderr:\n%s", code, s.stderr.String())
	}
	e.phase(ledger.Interrupted)
	e.noPods()
	e.inject("43", e.worker.Name) // the lock is free
}

// Whatever the moment, and whether by Ctrl-C, kill, or a terminal that was closed: an interrupted client leaves no pod
// and no lock, and its record says how it ended.
func TestInterruptedAtAnyMoment(t *testing.T) {
	t.Parallel()
	e := setup(t)
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	for delay := 20 * time.Millisecond; delay < 1500*time.Millisecond; delay = delay * 3 / 2 {
		s := e.start()
		signal := signals[0]
		signals = append(signals[1:], signal)
		timer := time.AfterFunc(delay, func() { _ = s.Process.Signal(signal) })
		_ = s.Wait()
		timer.Stop()
		// On a busy machine the first signals come before the program has begun; it then just dies, and has done
		// nothing.
		notBegun := s.ProcessState.ExitCode() == -1 && delay < 300*time.Millisecond
		if code := s.ProcessState.ExitCode(); code != 130 && !notBegun {
			t.Errorf("exit %d after signal %s at %s, wanted 130; stderr:\n%s", code, signal, delay, s.stderr.String())
		}
		e.noPods()
	}
	for _, run := range e.runs("--all") {
		if run.Phase != ledger.Interrupted {
			t.Errorf("run %s was left %s", run.ID, run.Phase)
		}
		// What left lines, or was about to and was not heard of again, stays in sight. What surely left none does not.
		step := run.Steps[0]
		wrote, mayHave := len(step.Evidence) > 0, step.Detail != nil
		if open := run.Closed.IsZero(); wrote && !open || open && !mayHave {
			t.Errorf("run %s wrote %d records (about to write: %s), and is closed since %s", run.ID, len(step.Evidence),
				step.Detail, run.Closed)
		}
	}
	e.inject("43", e.worker.Name)
}

// `2>&1 | head` must not kill a run half-way.
func TestAReaderThatGoesAwayDoesNotKillTheRun(t *testing.T) {
	t.Parallel()
	e := setup(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := e.command("xid", "63", e.worker.Name, "--yes", "--count", "20", "--interval", "50ms")
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if strings.Contains(lines.Text(), "debug pod running") {
			break
		}
	}
	_ = read.Close()
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		t.Errorf("the plugin was killed by %s", status.Signal())
	}
	e.phase(ledger.Proven)
	e.noPods()
}

// A killed client leaves a record, and anybody with the kubeconfig can clean up behind it.
func TestRevertAfterTheClientWasKilled(t *testing.T) {
	t.Parallel()
	e := setup(t)
	s := e.start()
	run := e.phase(ledger.Applying)
	_ = s.Process.Kill()
	_ = s.Wait()

	r := e.plugin("xid", "43", e.worker.Name, "--yes")
	e.mustSay(r, 1, run.ID, "kubectl gpu-fault revert")
	e.ok("revert", run.ID, "--yes", "--force")
	e.noPods()
	if runs := e.runs(); len(runs) != 0 {
		t.Errorf("after revert the ledger still has %+v", runs)
	}
	e.inject("43", e.worker.Name)
}

func TestASecondRunOnALockedNodeIsRefused(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.start()
	run := e.phase(ledger.Applying)
	e.mustSay(e.plugin("xid", "79", e.worker.Name, "--yes"), 1, e.worker.Name, run.ID, run.By)
}

func (e *env) mustSay(r result, code int, parts ...string) {
	e.t.Helper()
	if r.code != code {
		e.t.Errorf("exit %d, wanted %d\n%s%s", r.code, code, r.stdout, r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			e.t.Errorf("the message does not say %q:\n%s", part, r.stderr)
		}
	}
}

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/checkpoint"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// The arguments with which this program starts the processes of a fault. They are followed by the run ID.
const (
	SwitchArgument   = "device-switch"
	InjectorArgument = "device-injector"
)

func here() node {
	return node{
		plugins: checkpoint.Dir, podResources: "/var/lib/kubelet/pod-resources/kubelet.sock",
		state: "/run/gpu-fault/devices", proc: "/proc", program: "/proc/self/exe",
		leaveCgroups: func() error { return guard.LeaveCgroups("/proc") },
	}
}

// Main runs a process of a fault. The first argument is SwitchArgument or InjectorArgument, and the second is the run.
// The processes that it starts write to log.
func Main(argument, run string, log *os.File) error { return here().main(argument, run, log) }

func (n node) main(argument, run string, log *os.File) error {
	if err := deadman.ValidRun(run); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	if argument == SwitchArgument {
		return n.guard(run, log)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGUSR1)
	go func() {
		if <-asked == syscall.SIGUSR1 {
			cancel(errors.New("requested"))
		} else {
			cancel(errors.New("the fault's other process was killed"))
		}
	}()
	return n.inject(ctx, run)
}

// argv0 returns the name of a run's process.
func argv0(argument, run string) string { return "gpu-fault-" + argument + " " + run }

// command returns the command that runs a process of a fault, with a log in the record.
func (n node) command(argument, run string, log *os.File) *exec.Cmd {
	return &exec.Cmd{
		Path: n.program, Args: []string{argv0(argument, run), argument, run}, Dir: "/", Stderr: log,
		Env:         append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, n.env...),
		SysProcAttr: &syscall.SysProcAttr{},
	}
}

// start starts the switch, and waits until the devices have failed.
func (n node) start(ctx context.Context, run string) (status, error) {
	log, err := os.OpenFile(n.file(run, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return status{}, err
	}
	defer func() { _ = log.Close() }()
	cmd := n.command(SwitchArgument, run, log)
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return status{}, err
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no result after %v", startTimeout))
	defer cancel()
	for {
		gone := isClosed(exited)
		s, err := n.status(run)
		switch {
		case err != nil:
			return s, err
		case s.Phase == phaseFailed:
			return s, nil
		case s.Phase == phaseEnded:
			return s, errors.New(s.Problem + s.Cause)
		case gone:
			said, _ := os.ReadFile(n.file(run, logName))
			return s, fmt.Errorf("the fault's process exited: %s", strings.TrimSpace(string(said)))
		}
		if err := pause(ctx, pollEvery); err != nil {
			return s, err
		}
	}
}

// guard runs the switch: it starts the injector, and ends the fault if the injector is killed or hangs.
func (n node) guard(run string, log *os.File) error {
	r, err := n.load(run)
	if err != nil {
		return err
	}
	_ = os.WriteFile(filepath.Join(n.proc, "self/oom_score_adj"), []byte("-900"), 0) // best effort
	if err := n.leaveCgroups(); err != nil {
		problem := "leave the pod's cgroup: " + err.Error()
		return errors.Join(err, n.save(run, status{Phase: phaseEnded, Problem: problem}))
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGUSR1)
	// The kernel signals the child when the thread that started it exits, so this goroutine stays on its thread.
	runtime.LockOSThread()
	cmd := n.command(InjectorArgument, run, log)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	if err := cmd.Start(); err != nil {
		return errors.Join(err, n.save(run, status{Phase: phaseEnded, Problem: err.Error()}))
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	overdue := time.NewTimer(time.Until(r.Until) + leaveTimeout + 5*time.Second)
	defer overdue.Stop()
	select {
	case <-exited:
	case <-asked:
		_ = cmd.Process.Signal(syscall.SIGUSR1)
	case <-overdue.C:
	}
	select {
	case <-exited:
	case <-time.After(leaveTimeout):
		_ = cmd.Process.Kill()
		<-exited
	}
	if s, err := n.status(run); err == nil && s.Phase == phaseEnded {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = pause(ctx, notice)
	if err := n.giveBack(ctx, r); err != nil {
		return err
	}
	return n.save(run, status{Phase: phaseEnded, Cause: "the process that made the devices unhealthy was killed"})
}

// patience is the time for which the switch keeps trying to re-register the real plugin, for example while the kubelet
// is down.
const patience = 10 * time.Minute

// killAfter is the time that the processes of a run have to end the fault before they are killed.
const killAfter = leaveTimeout + 10*time.Second

// stop terminates the processes of a run, and waits until they have exited. The processes may have been stopped with
// SIGSTOP, or their cgroup may have been frozen.
func (n node) stop(ctx context.Context, run string) error {
	signaled := map[int]bool{}
	kill := time.After(killAfter)
	for {
		running := n.running(run)
		if len(running) == 0 {
			return nil
		}
		for pid, argument := range running {
			// The injector exits when the switch exits. If there is no switch, the injector itself is signaled.
			if !signaled[pid] && (argument == SwitchArgument || len(running) == 1) {
				signaled[pid] = true
				_ = syscall.Kill(pid, syscall.SIGUSR1)
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		select {
		case <-kill:
			for pid := range running {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		default:
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// running returns the processes of a run with their arguments. Any process can have such a name, so only processes that
// run as the helper's user and in the helper's mount namespace count.
func (n node) running(run string) map[int]string {
	found := map[int]string{}
	own, err := os.Readlink(filepath.Join(n.proc, "self/ns/mnt"))
	if err != nil {
		return nil
	}
	for _, p := range process.All(n.proc) {
		if p.IsRoots() && p.Mounts == own && len(p.Args) == 3 && p.Args[2] == run &&
			p.Args[0] == argv0(p.Args[1], run) &&
			(p.Args[1] == SwitchArgument || p.Args[1] == InjectorArgument) {
			found[p.PID] = p.Args[1]
		}
	}
	return found
}

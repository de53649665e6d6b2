//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// dead is a dead man's switch. It keeps the record in memory, so it does not depend on the record on disk.
type dead struct {
	Host
	record *record
	saved  saved
	// armedAt is the time at which the switch was armed, according to a clock that includes suspended time and cannot
	// be set.
	armedAt time.Duration
	ended   chan os.Signal
	// unhealed reports whether the change failed and could not be reverted.
	unhealed bool
}

// Guard runs a dead man's switch: it applies the change in the run's record, waits, and restores the files. It runs in
// a separate process, which Change starts. The caller logs the error.
func Guard(ctx context.Context, h Host, run string) error {
	if err := deadman.ValidRun(run); err != nil {
		return err
	}
	d := &dead{Host: h, ended: make(chan os.Signal, 1)}
	signal.Notify(d.ended, syscall.SIGTERM, restoreNow)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	_ = os.Chdir("/")
	// Make the process a less likely victim of the OOM killer. This is best effort.
	_ = os.WriteFile(h.Proc+"/self/oom_score_adj", []byte("-900"), 0)

	if err := d.change(ctx, run); err != nil {
		return err
	}
	d.passed("waiting")
	cause := causeFailed
	if !d.unhealed {
		cause = d.wait(ctx)
	}
	return d.heal(ctx, cause)
}

// change arms the switch and applies the change. If it returns an error, nothing is changed and the switch is not
// needed.
func (d *dead) change(ctx context.Context, run string) error {
	unlock, err := d.lock(ctx, run)
	if err != nil {
		return err
	}
	defer unlock()
	if d.record, err = d.load(run); err != nil {
		return err
	}
	if d.saved, err = d.status(run); err != nil {
		return err
	}
	if d.saved.Phase != deadman.PhaseRecorded {
		return fmt.Errorf("the change for run %s has already been started", run)
	}
	for i, f := range d.record.Change.Files {
		if err := d.record.listed(i); err != nil {
			err = fmt.Errorf("%s: %w", f.Path, err)
			d.fail("not armed, nothing was changed: " + err.Error())
			return err
		}
	}
	if err := d.LeaveCgroup(); err != nil {
		d.fail("not armed, nothing was changed: leave the pod's cgroup: " + err.Error())
		return err
	}
	d.armedAt = uptime()
	d.saved.PID = os.Getpid()
	if ttl := d.record.Change.TTL; ttl > 0 {
		d.saved.Until = time.Now().Add(ttl).UTC()
	}
	if err := d.phase(deadman.PhaseArmed); err != nil {
		return err
	}
	d.passed("armed")
	if err := d.write(); err != nil {
		d.takeBack(ctx, "the change was reverted: "+err.Error())
		return nil
	}
	if err := d.phase(deadman.PhaseWritten); err != nil {
		d.takeBack(ctx, "the change was reverted: "+err.Error())
		return nil
	}
	d.passed("written")
	if d.record.Change.Service != nil && !d.record.Change.NoRestart {
		// The restart closes the client's connection. Wait until the client has read the status.
		_ = pause(ctx, d.times.hear)
		if err := d.takeUp(ctx, d.record.Change, &d.saved.Status); err != nil && !d.record.Change.MayFail {
			d.takeBack(ctx,
				"the change was reverted, because with it in place "+d.record.Change.Service.Unit+" does not respond: "+
					err.Error())
			return nil
		}
	}
	_ = d.phase(deadman.PhaseApplied)
	d.passed("applied")
	return nil
}

func (d *dead) write() error {
	for i, f := range d.record.Change.Files {
		if err := d.writeOne(i, f, d.record.Places[i]); err != nil {
			return err
		}
		d.passed(fmt.Sprint("wrote ", i))
	}
	return nil
}

func (d *dead) writeOne(i int, f deadman.File, p place) error {
	s, err := d.site(d.record.Run, p)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	defer s.close()
	d.passed(fmt.Sprint("writing ", i))
	return s.apply(f, p)
}

// takeBack immediately reverts a failed change, and records the failure in the status.
func (d *dead) takeBack(ctx context.Context, why string) {
	restored := &deadman.Restored{}
	if err := d.putAllBack(ctx, d.record, &d.saved, restored, false); err != nil {
		d.unhealed = true
		why += "; reverting also failed and is being retried: " + err.Error()
	}
	d.fail(why)
}

func (d *dead) fail(message string) {
	d.saved.Message = message
	_ = d.phase(deadman.PhaseFailed)
}

func (d *dead) phase(p deadman.Phase) error {
	d.saved.Phase = p
	run := ""
	if d.record != nil {
		run = d.record.Run
	}
	if err := d.save(run, &d.saved); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

// The causes of a restore, for Status.
const (
	causeTTL    = "TTL"
	causeFailed = "the change failed"
	causePod    = "the pod terminated"
	causeTerm   = "the node is shutting down, or the dead man's switch was terminated"
	causeTest   = "the dead man's switch ended"
	causeAsked  = "asked to"
)

// restoreNow is the signal that requests a restore. SIGTERM also triggers a restore, but the node also sends it at
// shutdown.
const restoreNow = syscall.SIGUSR1

// wait waits until a restore is due, and returns its cause.
func (d *dead) wait(ctx context.Context) string {
	tick := time.NewTicker(d.times.tick)
	defer tick.Stop()
	for {
		select {
		case sig := <-d.ended:
			if sig == restoreNow {
				return causeAsked
			}
			return causeTerm
		case <-ctx.Done():
			return causeTest
		case <-tick.C:
		}
		// Check both clocks: the wall clock may be set back, and the other clock may stop while a virtual machine is
		// paused.
		if ttl := d.record.Change.TTL; ttl > 0 &&
			(uptime()-d.armedAt >= ttl || !time.Now().Round(0).Before(d.saved.Until)) {
			return causeTTL
		}
		if d.record.Pod.PID != 0 && !d.record.Pod.lives(d.Proc) {
			return causePod
		}
	}
}

// heal restores the files, and retries for a while if the restore fails. It does not need the record on disk.
func (d *dead) heal(ctx context.Context, cause string) error {
	ctx = context.WithoutCancel(ctx)
	run := d.record.Run
	pauses := d.times.retry
	for until := time.Now().Add(d.times.patience); ; {
		last, err := d.healOnce(ctx, cause)
		if err == nil || time.Now().After(until) {
			return err
		}
		_, _ = fmt.Fprintf(d.log(), "%s: restore run %s: %v\n", time.Now().UTC().Format(time.RFC3339), run, err)
		if last {
			return err
		}
		_ = pause(ctx, pauses)
		pauses = min(2*pauses, time.Minute)
	}
}

func (d *dead) healOnce(ctx context.Context, cause string) (last bool, err error) {
	run := d.record.Run
	unlock, err := d.lock(ctx, run)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the record on disk was removed, but a copy is in memory
		unlock = func() {}
	case err != nil:
		return false, err
	default:
		// An interrupted restore request may have progressed further than the status in memory indicates.
		if now, err := d.status(run); err == nil {
			if now.Result != nil {
				unlock()
				return true, nil
			}
			d.saved.Plan, d.saved.Phase = now.Plan, now.Phase
		}
	}
	defer unlock()
	failedBefore := d.saved.Phase == deadman.PhaseFailed
	d.saved.Cause = cause
	record := *d.record
	if cause == causeTerm && d.shutsDown(ctx) {
		record.Change.Service = nil // the service has already been stopped, and will load the restored files at boot
	}
	restored := &deadman.Restored{}
	if err := d.putAllBack(ctx, &record, &d.saved, restored, false); err != nil {
		if !failedBefore {
			d.saved.Message = ""
		}
		d.fail(strings.TrimPrefix(d.saved.Message+"; ", "; ") + "not restored yet: " + err.Error())
		return false, err
	}
	d.passed("healed")
	if phase := phaseOf(restored); phase != deadman.PhaseRestored {
		d.saved.Message = "changed by another client and kept: " + superseded(restored)
		_ = d.phase(phase)
		return true, nil
	}
	if err := d.erase(run, d.record); err != nil {
		_ = d.phase(deadman.PhaseRestored)
		return false, err
	}
	return true, nil
}

func (h Host) log() io.Writer {
	if h.Log == nil {
		return io.Discard
	}
	return h.Log
}

func superseded(r *deadman.Restored) string {
	var paths []string
	for _, f := range r.Files {
		if f.Outcome == deadman.OutcomeSuperseded {
			paths = append(paths, f.Path)
		}
	}
	return strings.Join(paths, ", ")
}

// shutsDown reports whether systemd is shutting down the node.
func (d *dead) shutsDown(ctx context.Context) bool {
	if _, err := os.Stat(d.Systemd); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, _ := d.Run(ctx, "systemctl", "is-system-running") // exits with a non-zero code during shutdown
	switch strings.TrimSpace(said) {
	case "initializing", "starting", "running", "degraded", "maintenance":
		return false
	}
	return true // the node is stopping, or systemd does not respond
}

// uptime returns the time since boot, including suspended time.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

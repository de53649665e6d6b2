//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// askTimeout is the timeout of a single request.
const askTimeout = 5 * time.Second

func (h Host) ask(ctx context.Context, s *deadman.Service) (*cri.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return h.Ask(ctx, s.Socket)
}

// restart restarts a service, and waits until the restart has finished or failed.
func (h Host) restart(ctx context.Context, s *deadman.Service) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.times.restart,
		fmt.Errorf("timed out after %v", h.times.restart))
	defer cancel()
	// Failed starts count toward the start limit, after which systemd refuses to start the unit.
	_, _ = h.Run(ctx, "systemctl", "reset-failed", s.Unit)
	_, err := h.Run(ctx, "systemctl", "restart", s.Unit)
	return err
}

// serves waits until the service's CRI is ready or the time has elapsed, and returns the response. If hopeless reports
// true for an error, serves returns that error immediately.
func (h Host) serves(
	ctx context.Context, s *deadman.Service, within time.Duration, hopeless func(error) bool,
) (*cri.Info, error) {
	until := time.Now().Add(within)
	for {
		info, err := h.ask(ctx, s)
		if err == nil && (info.Ready || time.Now().After(until)) {
			return info, nil
		}
		if err == nil {
			err = errors.New("CRI responds, but reports that it is not ready")
		}
		if time.Now().After(until) || hopeless(err) {
			return nil, err
		}
		if stopped := pause(ctx, h.times.poll); stopped != nil {
			return nil, stopped
		}
	}
}

// takeUp restarts the service so that it loads the changed files, and records the result in the status.
func (h Host) takeUp(ctx context.Context, change deadman.Change, s *deadman.Status) error {
	service := change.Service
	s.Restarted = true
	failed := h.restart(ctx, service)
	h.passed("restarted")
	within, hopeless := h.times.serve, func(error) bool { return false }
	if change.MayFail {
		within, hopeless = h.times.verdict, isUnknownService
	}
	if failed != nil {
		within = 0 // check once; the service may respond anyway
	}
	info, err := h.serves(ctx, service, within, hopeless)
	if err == nil {
		s.CRI = info
		return nil
	}
	s.ServiceError = fmt.Sprintf("CRI does not respond on %s: %v", service.Socket, err)
	if failed != nil {
		s.ServiceError = failed.Error()
	}
	if lines := h.lastLines(ctx, service); lines != "" {
		s.ServiceError += "\nlast lines of its log:\n" + lines
	}
	return errors.New(s.ServiceError)
}

// isUnknownService reports whether the runtime is running without its CRI plugin. Waiting does not help in this case.
func isUnknownService(err error) bool {
	return strings.Contains(err.Error(), "unknown service")
}

const lastLines = 5

// lastLines returns the end of the service's log, from the journal or a file, or "" if neither contains it.
func (h Host) lastLines(ctx context.Context, s *deadman.Service) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, err := h.Run(ctx, "journalctl", "-u", s.Unit, "-n", fmt.Sprint(lastLines), "--no-pager", "-q", "-o", "cat")
	if err == nil && said != "" && !strings.HasPrefix(said, "-- No entries") {
		return cut(said)
	}
	raw, err := os.ReadFile(filepath.Join(h.Logs, strings.TrimSuffix(s.Unit, ".service")+".log"))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return cut(strings.Join(lines[max(0, len(lines)-lastLines):], "\n"))
}

func cut(text string) string {
	const most = 4 << 10
	return text[max(0, len(text)-most):]
}

// bringBack restarts the service, if necessary, so that it loads the restored files. A restart is necessary if CRI does
// not respond or reports a different configuration than before. touched reports whether this restore changed a file.
func (h Host) bringBack(ctx context.Context, s *deadman.Service, touched bool, r *deadman.Restored) error {
	info, err := h.ask(ctx, s)
	needed := err != nil || h.sameConfig(s, info) == no || touched && h.sameConfig(s, info) == unknown
	if needed {
		r.Restarted = true
		failed := h.restart(ctx, s)
		h.passed("restarted back")
		within := h.times.serve
		if failed != nil {
			within /= 2 // systemd also restarts the service
		}
		if info, err = h.serves(ctx, s, within, func(error) bool { return false }); err != nil {
			r.CRI, r.SameConfig = nil, false
			return errors.Join(fmt.Errorf("%s still does not respond: %w", s.Unit, err), failed)
		}
	}
	r.CRI, r.SameConfig = info, h.sameConfig(s, info) != no
	return nil
}

type answer int

const (
	no answer = iota
	yes
	unknown
)

func (h Host) sameConfig(s *deadman.Service, info *cri.Info) answer {
	switch {
	case s.Config == "" || len(info.Config) == 0:
		return unknown
	case h.ConfigSum(info.Config) == s.Config:
		return yes
	}
	return no
}

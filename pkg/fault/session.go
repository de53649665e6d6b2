package fault

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Defaults for the fields of a Session.
const (
	// DefaultParallel is high enough for the startup of debug pods to overlap, and low enough not to overload a
	// registry.
	DefaultParallel = 10
	// DefaultTimeout allows for pulling an image over a slow link.
	DefaultTimeout = 10 * time.Minute
	// DefaultCleanupTimeout is the maximum time that Run continues after Ctrl-C.
	DefaultCleanupTimeout = time.Minute
)

// Session runs and reverts plans. Client and Ledger are required, as is an Undoer for every kind of undo in the plans.
// Use the same Session for Preflight and Run of a plan, so that Run can use the result of a recent Preflight.
type Session struct {
	Client  kubernetes.Interface
	Ledger  *ledger.Store
	Undoers map[string]Undoer // by ledger.Undo.Kind

	Observer Observer
	// Parallel is the maximum number of targets to work on in parallel. 0 means the number that InParallel returns for
	// the number of targets.
	Parallel int
	// Timeout limits Run, excluding its cleanup; 0 means DefaultTimeout.
	Timeout time.Duration
	// CleanupTimeout limits the cleanup after Run is interrupted; 0 means DefaultCleanupTimeout.
	CleanupTimeout time.Duration
	// Retry is the backoff for writing to the ledger after a change was made; zero means six attempts within eight
	// seconds.
	Retry wait.Backoff

	// Heartbeat is the interval at which a run's client renews a lock; 0 means ledger.HeartbeatEvery.
	Heartbeat time.Duration

	// Allow lifts limits on the blast radius for Revert, as Plan.Allow does for Run.
	Allow Allowances

	// Features are the values of `rbac print --for` that grant the permissions for a plan. If there are none, the
	// plan's fault is used.
	Features []string

	From    string // the client's host name, for the record
	Version string // the client's version, for the record

	observing sync.Mutex
	clearing  sync.Mutex
	cleared   map[string]clearance
	access    namespaceAccess
}

// Observer receives the progress of a run. Its functions may be nil, are called one at a time, and must not call the
// Session.
type Observer struct {
	// RunChanged is called after the record has been created and after each stored change of its phase.
	RunChanged func(run ledger.Run)
	// StepChanged is called after a new state of a step has been stored.
	StepChanged func(run ledger.Run, step ledger.Step)
	// Progress is called with progress messages from a fault, such as "debug pod running".
	Progress func(step ledger.Step, text string)
	// Warning is called for errors that do not stop the run, such as a missing permission to create an Event.
	Warning func(text string)
}

func (s *Session) runChanged(run ledger.Run) {
	s.observing.Lock()
	defer s.observing.Unlock()
	if s.Observer.RunChanged != nil {
		s.Observer.RunChanged(run)
	}
}

func (s *Session) stepChanged(run ledger.Run, id string) {
	step := run.Step(id)
	s.observing.Lock()
	defer s.observing.Unlock()
	if s.Observer.StepChanged != nil && step != nil {
		s.Observer.StepChanged(run, *step)
	}
}

func (s *Session) progress(step ledger.Step, text string) {
	s.observing.Lock()
	defer s.observing.Unlock()
	if s.Observer.Progress != nil {
		s.Observer.Progress(step, text)
	}
}

func (s *Session) warn(format string, args ...any) {
	s.observing.Lock()
	defer s.observing.Unlock()
	if s.Observer.Warning != nil {
		s.Observer.Warning(fmt.Sprintf(format, args...))
	}
}

// parallel returns the number of targets, out of n, to work on in parallel.
func (s *Session) parallel(n int) int {
	if s.Parallel > 0 {
		return s.Parallel
	}
	return InParallel(n)
}

// InParallel returns the default number of targets, out of n, to work on in parallel. This is DefaultParallel or, for a
// large fleet, 5% of the targets but at most 50. More are possible in a large fleet, because the image is then already
// on the nodes or in the registry's cache.
func InParallel(n int) int { return max(DefaultParallel, min(n/20, 50)) }

// Rounds returns the number of rounds needed to work on n targets if the parallel argument is the number of targets per
// round. If parallel is 0, it defaults to InParallel(n).
func Rounds(n, parallel int) int {
	parallel = cmp.Or(parallel, InParallel(n))
	return (n + parallel - 1) / parallel
}

func (s *Session) timeout() time.Duration {
	if s.Timeout > 0 {
		return s.Timeout
	}
	return DefaultTimeout
}

// cleanup returns a context that outlives ctx, for work that must be finished even if the user has interrupted the run.
func (s *Session) cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := s.CleanupTimeout
	if timeout <= 0 {
		timeout = DefaultCleanupTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

func (s *Session) heartbeat() time.Duration {
	if s.Heartbeat > 0 {
		return s.Heartbeat
	}
	return ledger.HeartbeatEvery
}

func (s *Session) retry() wait.Backoff {
	if s.Retry.Steps > 0 {
		return s.Retry
	}
	return wait.Backoff{Steps: 6, Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.1}
}

// guard converts a panic in a fault's code to an error, so that a bug in one fault does not prevent other faults from
// being undone.
func guard(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return do()
}

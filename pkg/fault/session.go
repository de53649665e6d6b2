package fault

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// The defaults of a Session.
const (
	// DefaultParallel is enough to hide the start of debug pods behind each other, and few enough not to flood a
	// registry.
	DefaultParallel = 10
	// DefaultTimeout leaves time to pull an image over a slow link.
	DefaultTimeout = 10 * time.Minute
	// DefaultCleanupTimeout is what a user who pressed Ctrl-C waits at most.
	DefaultCleanupTimeout = time.Minute
)

// Session makes and undoes changes. Client and Ledger are required, and an Undoer for every kind of undo that plans
// name. Use one Session for Preflight and Run of a plan: Run then trusts the Preflight that the user saw, if it is
// fresh.
type Session struct {
	Client  kubernetes.Interface
	Ledger  *ledger.Store
	Undoers map[string]Undoer // by ledger.Undo.Kind

	Observer Observer
	// Parallel is on how many targets work goes on at the same time; 0 means DefaultParallel.
	Parallel int
	// Timeout bounds Run without its cleanup; 0 means DefaultTimeout.
	Timeout time.Duration
	// CleanupTimeout bounds what Run does after it was stopped; 0 means DefaultCleanupTimeout.
	CleanupTimeout time.Duration
	// Retry is how often, and with which pauses, the ledger is tried when a change is made and its record must follow;
	// zero means six times within eight seconds.
	Retry wait.Backoff

	// Heartbeat is how often a run's client shows that it lives; 0 means ledger.HeartbeatEvery.
	Heartbeat time.Duration

	// Allow lifts limits of the blast radius for Revert, as Plan.Allow does for Run.
	Allow Allowances

	From    string // the host name, for the record
	Version string // of the client, for the record

	observing sync.Mutex
	clearing  sync.Mutex
	cleared   map[string]clearance
	access    namespaceAccess
}

// Observer hears how work goes on. Its functions may be nil, are called one at a time, and must not call the Session.
type Observer struct {
	// RunChanged is called with the record once it is created, and whenever its phase was stored.
	RunChanged func(run ledger.Run)
	// StepChanged is called when a step's new state was stored.
	StepChanged func(run ledger.Run, step ledger.Step)
	// Progress is what a fault says about its work on a step: "debug pod running".
	Progress func(step ledger.Step, text string)
	// Warning is for what went wrong and stops nothing: an Event that was not permitted.
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

func (s *Session) parallel() int {
	if s.Parallel > 0 {
		return s.Parallel
	}
	return DefaultParallel
}

func (s *Session) timeout() time.Duration {
	if s.Timeout > 0 {
		return s.Timeout
	}
	return DefaultTimeout
}

// cleanup returns a context that outlives ctx, for what must be done also when the user has stopped the run.
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

// guard turns a panic of a fault's own code into an error: a bug in one fault must not keep others from being undone.
func guard(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return do()
}

package debugpod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

const (
	// askAgain is the interval between attempts to run a command in the pod while the container runtime restarts. The
	// kubelet needs one or two seconds after the restart.
	askAgain = 100 * time.Millisecond
	// changeTimeout is the timeout for Change.
	changeTimeout = 7 * time.Minute
	// silence is the time after which continued failure to run commands in the pod proves that the runtime does not
	// respond.
	silence = 15 * time.Second
)

// InspectRuntime returns the container runtime that the kubelet uses, and its configuration.
func (s *Session) InspectRuntime(ctx context.Context) (*api.Runtime, error) {
	answer, err := s.Do(ctx, api.Request{InspectRuntime: &api.InspectRuntime{}}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Runtime == nil {
		return nil, fmt.Errorf("%w: the response is empty", ErrOutputLost)
	}
	return answer.Runtime, nil
}

// Change changes files on the node under a dead man's switch. It calls each, which may be nil, for each new phase, and
// returns the last status. The error is nil only if the change is applied. With PhaseFailed, the change is already
// reverted; with an *api.Error with CodeChanged, CodeRefused or CodeNotArmed, nothing was changed. After any other
// error, the change may be in effect; Restore reverts it.
//
// The restart of the container runtime closes the connection to the helper, so Change requests the status again until
// the switch responds. With MayFail, the switch may never respond, because no command can run in a pod while the
// runtime does not respond. ServiceError then contains the kubelet's error as proof, and Message explains why the
// switch cannot be queried.
func (s *Session) Change(
	ctx context.Context, change deadman.Change, each func(deadman.Status),
) (*deadman.Status, error) {
	var last *deadman.Status
	hear := func(a api.Answer) {
		if a.DeadMan == nil || last != nil && last.Phase == a.DeadMan.Phase {
			return
		}
		last = a.DeadMan
		if each != nil {
			each(*last)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, changeTimeout,
		fmt.Errorf("the dead man's switch did not report within %v that the change was applied", changeTimeout))
	defer cancel()
	_, err := s.Do(ctx, api.Request{Change: &change, Key: change.Key}, hear)
	for since := time.Now(); errors.Is(err, ErrOutputLost) && again(ctx, err); {
		if change.MayFail && last != nil && last.Phase == deadman.PhaseWritten && time.Since(since) > silence {
			// PhaseWritten proves that the switch is running. The switch does not report that it is continuing with the
			// restart.
			last.Phase, last.ServiceError = deadman.PhaseApplied,
				"no command can be run on the node: "+kubeletsWords(err)
			last.Message =
				"reported by the kubelet; the dead man's switch cannot be queried while the runtime does not respond"
			return last, nil
		}
		_, err = s.Do(ctx, api.Request{Await: &api.Await{}, Key: change.Key}, hear)
	}
	switch {
	case err != nil:
		return last, err
	case last == nil:
		return nil, fmt.Errorf("%w: the response is empty", ErrOutputLost)
	case last.Phase != deadman.PhaseApplied:
		return last, fmt.Errorf("the change is not in place (%s): %s", last.Phase, last.Message)
	}
	return last, nil
}

// Restore restores the files of the run, and removes all artifacts of the run from the node. It may be called again
// after an error, even from another client.
//
// While the container runtime does not respond, no command can run on the node. Restore retries until ctx ends or the
// dead man's switch has restored the files.
func (s *Session) Restore(ctx context.Context, restore deadman.Restore) (*deadman.Restored, error) {
	restored, err := s.restore(ctx, restore)
	if err != nil {
		return restored, err
	}
	// The node may remove the record only after the client has received the result.
	restore.Forget = true
	if _, err := s.restore(ctx, restore); err != nil {
		return restored, fmt.Errorf("the files are restored, but the record remains on the node: %w", err)
	}
	return restored, nil
}

func (s *Session) restore(ctx context.Context, restore deadman.Restore) (restored *deadman.Restored, err error) {
	for {
		_, err = s.Do(ctx, api.Request{Restore: &restore, Key: restore.Key}, func(a api.Answer) {
			if a.Restored != nil {
				restored = a.Restored
			}
		})
		if !errors.Is(err, ErrOutputLost) || !again(ctx, err) {
			break
		}
	}
	if err == nil && restored == nil {
		err = fmt.Errorf("%w: the response is empty", ErrOutputLost)
	}
	return restored, err
}

// Leftovers finds the artifacts that this program and other fault injectors left on the node, and removes them if
// what.Clean is set.
func (s *Session) Leftovers(ctx context.Context, what api.Leftovers) ([]deadman.Leftover, error) {
	answer, err := s.Do(ctx, api.Request{Leftovers: &what}, nil)
	return answer.Leftovers, err
}

// again waits before the next attempt. It returns false if another attempt is pointless or ctx ends.
func again(ctx context.Context, err error) bool {
	return !errors.Is(err, errPodGone) && pause(ctx, askAgain) == nil
}

// kubeletsWords returns the part of an error that comes from the kubelet.
func kubeletsWords(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "rpc error:"); i >= 0 {
		return text[i:]
	}
	return strings.TrimPrefix(text, ErrOutputLost.Error()+": ")
}

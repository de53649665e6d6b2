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
	// askAgain is the pause between two tries to run a command in the pod while the container runtime restarts. The
	// kubelet needs one or two seconds after it.
	askAgain = 100 * time.Millisecond
	// changeTimeout is how long Change hears nothing of a dead man before it gives up.
	changeTimeout = 7 * time.Minute
	// silence is how long no command can be run in the pod before it is taken for proof that the runtime does not
	// serve.
	silence = 15 * time.Second
)

// InspectRuntime asks which container runtime the kubelet uses, with which configuration.
func (s *Session) InspectRuntime(ctx context.Context) (*api.Runtime, error) {
	answer, err := s.Do(ctx, api.Request{InspectRuntime: &api.InspectRuntime{}}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Runtime == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Runtime, nil
}

// Change has files of the node changed by a dead man, and hands on each new phase; each may be nil. It returns the last
// status. The error is nil only when the change is applied; with PhaseFailed it is taken back already, and with the
// codes CodeChanged, CodeRefused and CodeNotArmed of a *api.Error nothing was changed. With every other error the
// change may be there: Restore puts it back.
//
// The restart of the container runtime cuts the connection to the helper, so its dead man is asked again until it
// answers. With MayFail that is never, as no command can be run in a pod of a node whose runtime does not serve: then
// the kubelet's words are the proof, in ServiceError, and Message says so.
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
		fmt.Errorf("the dead man does not say within %v that the change is applied", changeTimeout))
	defer cancel()
	_, err := s.Do(ctx, api.Request{Change: &change}, hear)
	for since := time.Now(); errors.Is(err, ErrOutputLost) && again(ctx, err); {
		if change.MayFail && last != nil && last.Phase == deadman.PhaseWritten && time.Since(since) > silence {
			// Nobody but the dead man writes files, and it does not say so when it goes on to the restart.
			last.Phase, last.ServiceError = deadman.PhaseApplied,
				"no command can be run on the node: "+kubeletsWords(err)
			last.Message =
				"this is what the kubelet says; the dead man cannot be asked while the runtime does not serve"
			return last, nil
		}
		_, err = s.Do(ctx, api.Request{Await: &api.Await{}}, hear)
	}
	switch {
	case err != nil:
		return last, err
	case last == nil:
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	case last.Phase != deadman.PhaseApplied:
		return last, fmt.Errorf("the change is not there (%s): %s", last.Phase, last.Message)
	}
	return last, nil
}

// Restore has the files of the run put back, and everything of ours removed from the node. It may be called again after
// an error, and from another client.
//
// While the container runtime does not serve, no command can be run on the node; Restore tries until ctx ends, or the
// dead man has put the files back.
func (s *Session) Restore(ctx context.Context, restore deadman.Restore) (*deadman.Restored, error) {
	restored, err := s.restore(ctx, restore)
	if err != nil {
		return restored, err
	}
	// Only now that the result is here may the node forget it.
	restore.Forget = true
	if _, err := s.restore(ctx, restore); err != nil {
		return restored, fmt.Errorf("the files are put back, and the record is left on the node: %w", err)
	}
	return restored, nil
}

func (s *Session) restore(ctx context.Context, restore deadman.Restore) (restored *deadman.Restored, err error) {
	for {
		_, err = s.Do(ctx, api.Request{Restore: &restore}, func(a api.Answer) {
			if a.Restored != nil {
				restored = a.Restored
			}
		})
		if !errors.Is(err, ErrOutputLost) || !again(ctx, err) {
			break
		}
	}
	if err == nil && restored == nil {
		err = fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return restored, err
}

// Leftovers has what we and other fault injectors left on the node looked for, and removed if what says so.
func (s *Session) Leftovers(ctx context.Context, what api.Leftovers) ([]deadman.Leftover, error) {
	answer, err := s.Do(ctx, api.Request{Leftovers: &what}, nil)
	return answer.Leftovers, err
}

// again waits before another try, and is false when there is no use in one.
func again(ctx context.Context, err error) bool {
	return !errors.Is(err, errPodGone) && pause(ctx, askAgain) == nil
}

// kubeletsWords returns what an error has of the kubelet's own: it follows our own words.
func kubeletsWords(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "rpc error:"); i >= 0 {
		return text[i:]
	}
	return strings.TrimPrefix(text, ErrOutputLost.Error()+": ")
}

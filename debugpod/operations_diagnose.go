package debugpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// lastWord is the grace period for the helper to exit after its last response. A helper does not exit while a network
// file system blocks one of its threads.
const lastWord = 5 * time.Second

var errAnswered = errors.New("the helper has responded, but has not exited")

// Diagnose collects everything on the node that can explain why GPU pods do not run there. If a part cannot be read,
// Diagnose does not return an error, but lists the part in Probe.Unread.
func (s *Session) Diagnose(ctx context.Context, what api.Diagnose) (*api.Diagnosis, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer, err := s.Do(ctx, api.Request{Diagnose: &what}, func(a api.Answer) {
		if a.Done {
			timer := time.AfterFunc(lastWord, func() { cancel(errAnswered) })
			context.AfterFunc(ctx, func() { timer.Stop() })
		}
	})
	if err != nil {
		return nil, err
	}
	if answer.Diagnosis == nil {
		return nil, fmt.Errorf("%w: the response is empty", ErrOutputLost)
	}
	return answer.Diagnosis, nil
}

package debugpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// lastWord is how long the helper may take to end after its last answer. One of whose threads a dead network file
// system holds does not end.
const lastWord = 5 * time.Second

var errAnswered = errors.New("the helper has answered, and does not end")

// Diagnose asks for everything on the node that tells why GPU pods may not run there. What could not be read is named
// in Probe.Unread, and is no error.
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
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Diagnosis, nil
}

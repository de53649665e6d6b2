package debugpod

import (
	"context"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
)

// Inspect asks what the node is.
func (s *Session) Inspect(ctx context.Context, what node.Inspect) (*node.Info, error) {
	answer, err := s.Do(ctx, node.Request{Inspect: &what}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Info == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Info, nil
}

// WriteKmsg writes records to the node's kernel log, and hands on the proofs as they come; each may be nil. It returns what is
// proven, which with an error is a part of what was asked for, from the first record on. Without an error, every record was read
// back from the kernel log, in the order in which they were given.
func (s *Session) WriteKmsg(ctx context.Context, what node.WriteKmsg, each func([]node.WrittenKmsg)) ([]node.WrittenKmsg, error) {
	var proven []node.WrittenKmsg
	var wrong error
	_, err := s.Do(ctx, node.Request{WriteKmsg: &what}, func(a node.Answer) {
		for _, w := range a.Written {
			if last := len(proven) - 1; w.Record != len(proven) || last >= 0 && w.Sequence <= proven[last].Sequence {
				wrong = fmt.Errorf("the helper's proofs are out of order: record %d with sequence %d after %d records", w.Record, w.Sequence, len(proven))
				return
			}
			proven = append(proven, w)
		}
		if each != nil && len(a.Written) > 0 {
			each(a.Written)
		}
	})
	switch {
	case err != nil:
		return proven, err
	case wrong != nil:
		return proven, wrong
	case len(proven) != len(what.Records):
		return proven, fmt.Errorf("%w: only %d of %d records are proven", ErrOutputLost, len(proven), len(what.Records))
	}
	return proven, nil
}

package debugpod

import (
	"context"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Inspect asks what the node is.
func (s *Session) Inspect(ctx context.Context, what api.Inspect) (*api.Info, error) {
	answer, err := s.Do(ctx, api.Request{Inspect: &what}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Info == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Info, nil
}

// WriteKmsg writes records to the node's kernel log, and hands on the proofs as they come; each may be nil. It returns
// what is proven, which with an error is a part of what was asked for, from the first record on. Without an error,
// every record was read back from the kernel log, in the order in which they were given.
func (s *Session) WriteKmsg(
	ctx context.Context, what api.WriteKmsg, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteKmsg: &what}, len(what.Records), each)
}

// BuildModule has the kernel module built in the debug pod for the node's kernel. Nothing is loaded.
func (s *Session) BuildModule(ctx context.Context, what api.BuildModule) (*api.BuiltModule, error) {
	answer, err := s.Do(ctx, api.Request{BuildModule: &what}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Built == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Built, nil
}

// WriteModule is WriteKmsg through the kernel module, which is loaded for it. It is unloaded again when there is no
// error, and with a *api.Error but for CodeStays; with any other error it may still be loaded: RemoveModule unloads
// it.
func (s *Session) WriteModule(
	ctx context.Context, what api.WriteModule, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteModule: &what}, len(what.Records), each)
}

// RemoveModule has the kernel module unloaded if the pod's run had loaded it.
func (s *Session) RemoveModule(ctx context.Context) (*api.RemovedModule, error) {
	answer, err := s.Do(ctx, api.Request{RemoveModule: &api.RemoveModule{}}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Removed == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Removed, nil
}

// Firewall has the node's kernel drop packets. With an error it may do so all the same, but for a *api.Error of the
// codes CodeExists and CodeNoFilter: RemoveFirewall removes it.
func (s *Session) Firewall(ctx context.Context, what api.Firewall) (*api.BuiltFirewall, error) {
	answer, err := s.Do(ctx, api.Request{Firewall: &what}, nil)
	if err != nil {
		return nil, err
	}
	if answer.Firewall == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.Firewall, nil
}

// RemoveFirewall has a firewall of the pod's run removed. It may be called again.
func (s *Session) RemoveFirewall(ctx context.Context, what api.RemoveFirewall) (*api.RemovedFirewall, error) {
	answer, err := s.Do(ctx, api.Request{RemoveFirewall: &what}, nil)
	if err != nil {
		return nil, err
	}
	if answer.RemovedFirewall == nil {
		return nil, fmt.Errorf("%w: it said that it is done, and told nothing", ErrOutputLost)
	}
	return answer.RemovedFirewall, nil
}

// write has records written, and gathers their proofs.
func (s *Session) write(
	ctx context.Context, req api.Request, records int, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	var proven []api.WrittenKmsg
	var wrong error
	_, err := s.Do(ctx, req, func(a api.Answer) {
		for _, w := range a.Written {
			if last := len(proven) - 1; w.Record != len(proven) || last >= 0 && w.Sequence <= proven[last].Sequence {
				wrong = fmt.Errorf("the helper's proofs are out of order: record %d with sequence %d after %s",
					w.Record, w.Sequence, count.Of(len(proven), "record"))
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
	case len(proven) != records:
		return proven, fmt.Errorf("%w: only %d of %s proven", ErrOutputLost, len(proven), count.Of(records, "record"))
	}
	return proven, nil
}

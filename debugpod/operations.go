package debugpod

import (
	"context"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Inspect returns information about the node.
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

// WriteKmsg writes records to the node's kernel log, and calls each, which may be nil, for each verified record. It
// returns the verified records. If it fails, only the first records may be verified. Without an error, every record was
// read back from the kernel log in the given order.
func (s *Session) WriteKmsg(
	ctx context.Context, what api.WriteKmsg, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteKmsg: &what}, len(what.Records), each)
}

// BuildModule builds the kernel module in the debug pod for the node's kernel. It does not load the module.
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

// WriteModule is like WriteKmsg, but writes through the kernel module, which it loads first. It unloads the module if
// it succeeds or returns a *api.Error with a code other than CodeStays. After any other error, the module may still be
// loaded; RemoveModule unloads it.
func (s *Session) WriteModule(
	ctx context.Context, what api.WriteModule, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteModule: &what}, len(what.Records), each)
}

// RemoveModule unloads the kernel module if the pod's run loaded it.
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

// Firewall makes the node's kernel drop packets. If it fails, packets may still be dropped, unless the error is a
// *api.Error with CodeExists or CodeNoFilter; RemoveFirewall removes the firewall.
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

// RemoveFirewall removes a firewall of the pod's run. It may be called repeatedly.
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

// write sends a request that writes records, and collects the verified records.
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

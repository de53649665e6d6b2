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
	return answered(answer.Info, err)
}

// WriteKmsg writes records to the node's kernel log, and calls each, which may be nil, for each verified record. It
// returns the verified records. If it fails, it may have verified only the first few records. Without an error, every
// record was read back from the kernel log in the given order.
func (s *Session) WriteKmsg(
	ctx context.Context, what api.WriteKmsg, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteKmsg: &what}, len(what.Records), each)
}

// ReadKernelLog returns the records about GPUs in the node's kernel log.
func (s *Session) ReadKernelLog(ctx context.Context, what api.ReadKernelLog) (*api.KernelRecords, error) {
	answer, err := s.Do(ctx, api.Request{ReadKernelLog: &what}, nil)
	return answered(answer.KernelLog, err)
}

// RemoveFiles removes configuration files with known digests from the node.
func (s *Session) RemoveFiles(ctx context.Context, what api.RemoveFiles) (*api.RemovedFiles, error) {
	answer, err := s.Do(ctx, api.Request{RemoveFiles: &what}, nil)
	return answered(answer.RemovedFiles, err)
}

// BuildModule builds the kernel module in the debug pod for the node's kernel. It does not load the module.
func (s *Session) BuildModule(ctx context.Context, what api.BuildModule) (*api.BuiltModule, error) {
	answer, err := s.Do(ctx, api.Request{BuildModule: &what}, nil)
	return answered(answer.Built, err)
}

// WriteModule is like WriteKmsg, but writes through the kernel module, which it loads first. It unloads the module if
// it succeeds or returns an *api.Error with a code other than CodeStays. After any other error, the module may still be
// loaded; RemoveModule unloads it.
func (s *Session) WriteModule(
	ctx context.Context, what api.WriteModule, each func([]api.WrittenKmsg),
) ([]api.WrittenKmsg, error) {
	return s.write(ctx, api.Request{WriteModule: &what}, len(what.Records), each)
}

// RemoveModule unloads the kernel module if the pod's run loaded it.
func (s *Session) RemoveModule(ctx context.Context) (*api.RemovedModule, error) {
	answer, err := s.Do(ctx, api.Request{RemoveModule: &api.RemoveModule{}}, nil)
	return answered(answer.Removed, err)
}

// Firewall makes the node's kernel drop packets. If Firewall fails, packets may nevertheless be dropped, unless the
// error is an *api.Error with CodeExists or CodeNoFilter; RemoveFirewall removes the firewall.
func (s *Session) Firewall(ctx context.Context, what api.Firewall) (*api.BuiltFirewall, error) {
	answer, err := s.Do(ctx, api.Request{Firewall: &what}, nil)
	return answered(answer.Firewall, err)
}

// RemoveFirewall removes a firewall of the pod's run. It may be called repeatedly.
func (s *Session) RemoveFirewall(ctx context.Context, what api.RemoveFirewall) (*api.RemovedFirewall, error) {
	answer, err := s.Do(ctx, api.Request{RemoveFirewall: &what}, nil)
	return answered(answer.RemovedFirewall, err)
}

// ListDevices returns the devices that device plugins have registered with the node's kubelet.
func (s *Session) ListDevices(ctx context.Context) (*api.Devices, error) {
	answer, err := s.Do(ctx, api.Request{ListDevices: &api.ListDevices{}}, nil)
	return answered(answer.Devices, err)
}

// FailDevices makes the kubelet treat devices as unhealthy. If FailDevices fails, the fault may nevertheless be in
// effect, unless the error is an *api.Error with CodeRefused, CodeExists or CodeNotArmed; RecoverDevices ends the
// fault.
func (s *Session) FailDevices(ctx context.Context, what api.FailDevices) (*api.FailedDevices, error) {
	answer, err := s.Do(ctx, api.Request{FailDevices: &what}, nil)
	return answered(answer.FailedDevices, err)
}

// RecoverDevices ends the fault that FailDevices injected for the pod's run. It may be called repeatedly.
func (s *Session) RecoverDevices(ctx context.Context) (*api.RecoveredDevices, error) {
	answer, err := s.Do(ctx, api.Request{RecoverDevices: &api.RecoverDevices{}}, nil)
	return answered(answer.RecoveredDevices, err)
}

// ResetGPU resets a GPU. An *api.Error with CodeRefused means that nothing was reset.
func (s *Session) ResetGPU(ctx context.Context, what api.ResetGPU) (*api.GPUReset, error) {
	answer, err := s.Do(ctx, api.Request{ResetGPU: &what}, nil)
	return answered(answer.GPUReset, err)
}

// answered returns the content of the last response, or an error if it is empty.
func answered[T any](content *T, err error) (*T, error) {
	if err == nil && content == nil {
		err = fmt.Errorf("%w: the response is empty", ErrOutputLost)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
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
				wrong = fmt.Errorf("the helper's verified records are out of order: record %d with sequence %d after %s",
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

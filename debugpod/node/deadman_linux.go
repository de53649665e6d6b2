package node

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/containerruntime"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/device"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/module"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// enteredArgument is the argument with which the helper starts itself in the node's namespaces.
const enteredArgument = "entered"

func enterNode(proc string, request []byte) error {
	return guard.Enter(proc, []string{"gpu-fault-node", enteredArgument}, append(request, '\n'))
}

// changeable returns the files that a change may specify, based on an inspection of the node: all files that the
// kubelet's containerd loads, and the root files of other containerds, to which the wrong-instance fault moves a
// handler.
func changeable(found api.Runtime) (guard.Runtime, error) {
	i := found.Instance
	if found.Problem != "" {
		return guard.Runtime{}, errors.New(found.Problem)
	}
	if i == nil {
		return guard.Runtime{}, errors.New("the kubelet's container runtime is unknown")
	}
	all := guard.Runtime{
		Unit: i.Unit, Socket: i.Socket, Globs: i.Config().Globs(),
		New: []string{containerd.OwnDropin(i.ConfigPath), containerd.NewDecoy},
	}
	add := func(f api.ConfigFile) {
		if f.ReadOnly == "" { // the runtime may see a different file at the path of a read-only file
			all.Files = append(all.Files, f.Path)
		}
	}
	for _, f := range i.Files {
		add(f)
	}
	for _, decoy := range found.Decoys {
		if len(decoy.Files) > 0 {
			add(decoy.Files[0])
		}
	}
	return all, nil
}

// deadMan handles the requests for a dead man's switch. This process runs in the node's own namespaces.
func deadMan(ctx context.Context, req api.Request, here hostfs.Host, answers *answers) error {
	host := guard.Node()
	host.Key = req.Key
	host.Inspect = func(ctx context.Context) (guard.Runtime, error) {
		return changeable(containerruntime.Inspect(ctx, here))
	}
	tell := func(s deadman.Status) error { return answers.send(api.Answer{DeadMan: &s}) }
	var last api.Answer
	var err error
	switch {
	case req.Change != nil:
		last.DeadMan, err = guard.Change(ctx, host, req.Run, *req.Change, tell)
	case req.Await != nil:
		last.DeadMan, err = guard.Await(ctx, host, req.Run, tell)
	case req.Restore != nil:
		// The input ends if the runtime restarts or the client disconnects. Finish the restore in both cases.
		last.Restored, err = guard.Restore(context.WithoutCancel(ctx), host, req.Run, *req.Restore)
	case req.Leftovers != nil:
		last.Leftovers, err = guard.Leftovers(ctx, host, req.Leftovers.Clean, req.Leftovers.Keep)
		last.Leftovers = append(last.Leftovers,
			module.Left(here, req.Leftovers.Clean, req.Leftovers.Keep)...)
		last.Leftovers = append(last.Leftovers, firewall.Left(here, req.Leftovers.Clean, req.Leftovers.Keep)...)
		last.Leftovers = append(last.Leftovers, device.Left(ctx, req.Leftovers.Clean, req.Leftovers.Keep)...)
	}
	if err == nil {
		return answers.done(last)
	}
	if last.DeadMan != nil || last.Restored != nil {
		_ = answers.send(last) // send the progress so far
	}
	var known *guard.Error
	if errors.As(err, &known) {
		return answers.fail(&api.Error{Code: api.Code(known.Code), Message: known.Message})
	}
	return answers.fail(api.Errorf(api.CodeInternal, "%v", err))
}

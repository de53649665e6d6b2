package node

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
)

// enteredArgument tells the program that it has entered the node.
const enteredArgument = "entered"

func enterNode(proc string, request []byte) error {
	return guard.Enter(proc, []string{"gpu-fault-node", enteredArgument}, append(request, '\n'))
}

// deadMan does what is asked of a dead man. This process is in the node's own namespaces.
func deadMan(ctx context.Context, req Request, here Host, answers *answers) error {
	host := guard.Node()
	tell := func(s deadman.Status) error { return answers.send(Answer{DeadMan: &s}) }
	var last Answer
	var err error
	switch {
	case req.Change != nil:
		last.DeadMan, err = guard.Change(ctx, host, req.Run, *req.Change, tell)
	case req.Await != nil:
		last.DeadMan, err = guard.Await(ctx, host, req.Run, tell)
	case req.Restore != nil:
		// The restart of the runtime ends our input, as a client that goes away does: what was begun is finished.
		last.Restored, err = guard.Restore(context.WithoutCancel(ctx), host, req.Run, *req.Restore)
	case req.Leftovers != nil:
		last.Leftovers, err = guard.Leftovers(ctx, host, req.Leftovers.Clean, req.Leftovers.Keep)
		last.Leftovers = append(last.Leftovers, leftModule(here, thisKernel(), req.Leftovers.Clean, req.Leftovers.Keep)...)
		last.Leftovers = append(last.Leftovers, leftFirewalls(here, req.Leftovers.Clean, req.Leftovers.Keep)...)
	}
	if err == nil {
		return answers.done(last)
	}
	if last.DeadMan != nil || last.Restored != nil {
		_ = answers.send(last) // how far it got
	}
	var known *guard.Error
	if errors.As(err, &known) {
		return answers.fail(&Error{Code: Code(known.Code), Message: known.Message})
	}
	return answers.fail(errorf(CodeInternal, "%v", err))
}

package main

import (
	"context"
	"os"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
)

func closeOnExec(fd int) { syscall.CloseOnExec(fd) }

func guardRun(ctx context.Context, run string) error {
	node := guard.Node()
	node.Log = os.Stderr // a file in the record, or /dev/null
	var err error
	if node.Key, err = guard.ReadKey(os.Stdin); err != nil {
		return err
	}
	return guard.Guard(ctx, node, run)
}

package main

import (
	"context"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
)

func guardRun(ctx context.Context, run string) error {
	node := guard.Node()
	node.Log = os.Stderr // a file in its record
	return guard.Guard(ctx, node, run)
}

// Command gpu-fault-node is the helper that kubectl gpu-fault brings to a node in a privileged pod. It does what one request asks,
// writes the answers as JSON to standard output, and exits with 0 when it was done, else with 1. See debugpod/node.
package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// run reads the request from where the only argument says: "stdin", or "attached" to this executable. Errors are on standard
// output already.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "stdin":
		return node.Serve(ctx, os.Stdin, os.Stdout, node.DebugPod())
	case len(args) == 1 && args[0] == "attached":
		exe, err := os.Open("/proc/self/exe")
		if err != nil {
			return refuse(node.CodeTruncated, "read the helper's own file: "+err.Error())
		}
		defer func() { _ = exe.Close() }()
		info, err := exe.Stat()
		if err != nil {
			return refuse(node.CodeTruncated, "read the helper's own file: "+err.Error())
		}
		return node.ServeAttached(ctx, exe, info.Size(), os.Stdin, os.Stdout, node.DebugPod())
	default:
		return refuse(node.CodeBadRequest, "this is a part of kubectl gpu-fault, which runs it: usage: gpu-fault-node stdin|attached")
	}
}

func refuse(code node.Code, message string) error {
	failure := &node.Error{Code: code, Message: message}
	_ = json.NewEncoder(os.Stdout).Encode(node.Answer{Protocol: node.Protocol, Error: failure})
	return failure
}

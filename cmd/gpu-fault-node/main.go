// Command gpu-fault-node is the helper that kubectl gpu-fault runs on a node in a privileged pod. It handles one
// request, writes the responses as JSON to standard output, and exits with status 0 on success and 1 otherwise. See
// debugpod/node.
//
// It executes itself for several purposes: "entered FD" runs the helper in the node's own namespaces, with the request
// in an open file. "guard RUN" runs a dead man's switch; see debugpod/deadman/guard. "device-switch RUN" and
// "device-injector RUN" make devices fail; see debugpod/node/device.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/device"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "guard" {
		if err := guardRun(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && (os.Args[1] == device.SwitchArgument || os.Args[1] == device.InjectorArgument) {
		if err := device.Main(os.Args[1], os.Args[2], os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// The debug pod has 128 MiB of memory, which the helper shares with the programs that it runs on the node.
	debug.SetMemoryLimit(80 << 20)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// run reads and handles the request. The first argument determines where the request is: "stdin" means standard input,
// and may be followed by the SHA-256 that the helper must have; "attached" means the end of this executable; "entered"
// means an open file, and indicates that the helper has already entered the node's namespaces. "wait SECONDS" has no
// request and only keeps a container running. Errors have already been written to standard output.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "stdin":
		return node.Serve(ctx, os.Stdin, os.Stdout, node.DebugPod())
	case len(args) == 2 && args[0] == "stdin":
		if failure := node.CheckProgram("/proc/self/exe", args[1]); failure != nil {
			return refuse(failure.Code, failure.Message)
		}
		return node.Serve(ctx, os.Stdin, os.Stdout, node.DebugPod())
	case len(args) == 2 && args[0] == "wait":
		seconds, err := strconv.ParseUint(args[1], 10, 31)
		if err != nil {
			return refuse(api.CodeBadRequest, "wait requires a number of seconds")
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-ctx.Done():
		}
		return nil
	case len(args) == 1 && args[0] == "attached":
		exe, err := os.Open("/proc/self/exe")
		if err != nil {
			return refuse(api.CodeTruncated, "read the helper's own executable: "+err.Error())
		}
		defer func() { _ = exe.Close() }()
		info, err := exe.Stat()
		if err != nil {
			return refuse(api.CodeTruncated, "read the helper's own executable: "+err.Error())
		}
		return node.ServeAttached(ctx, exe, info.Size(), os.Stdin, os.Stdout, node.DebugPod())
	case len(args) == 2 && args[0] == "entered":
		fd, err := strconv.Atoi(args[1])
		if err != nil || fd < 3 {
			return refuse(api.CodeBadRequest, "this command is run only by the helper itself")
		}
		closeOnExec(fd) // the dead man's switch must not inherit the key of an encrypted record
		request := os.NewFile(uintptr(fd), "request")
		defer func() { _ = request.Close() }()
		return node.ServeEntered(ctx, request, os.Stdin, os.Stdout, node.Entered())
	default:
		return refuse(api.CodeBadRequest,
			"this program is run only by kubectl gpu-fault; usage: gpu-fault-node stdin|attached|wait")
	}
}

func refuse(code api.Code, message string) error {
	failure := &api.Error{Code: code, Message: message}
	_ = json.NewEncoder(os.Stdout).Encode(api.Answer{Protocol: api.Protocol, Error: failure})
	return failure
}

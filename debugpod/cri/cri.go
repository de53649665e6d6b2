// Package cri requests the status of a container runtime through its CRI socket.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

// Info is the status of a container runtime, from CRI's Version and Status(verbose).
type Info struct {
	Name    string `json:"name"`    // such as containerd or cri-o
	Version string `json:"version"` // such as v2.3.7 or 1.7.28
	// Ready is the RuntimeReady condition.
	Ready bool `json:"ready"`
	// NotReady is the reason and message of a RuntimeReady condition that is not true.
	NotReady string `json:"notReady,omitempty"`
	// Handlers are the RuntimeHandlers. containerd before 2.0 does not report them.
	Handlers []string `json:"handlers,omitempty"`
	// Config is info["config"], which is the configuration in memory. All versions of containerd report it.
	Config json.RawMessage `json:"config,omitempty"`
}

// ErrNotLoaded means that containerd responds, but its CRI plugin is disabled or failed to load.
var ErrNotLoaded = errors.New("the CRI plugin is disabled or was not loaded")

// askTimeout is the timeout for one Ask. A healthy runtime responds within milliseconds.
const askTimeout = 10 * time.Second

const service = "/runtime.v1.RuntimeService/"

// call makes one call. The error wraps ErrNotLoaded if the server does not provide CRI. A server that lacks only the
// method reports "unknown method" instead.
func call(ctx context.Context, c *rpc.Conn, method string, message []byte) ([]byte, error) {
	reply, err := c.Call(ctx, service+method, message)
	var refused *rpc.Error
	if errors.As(err, &refused) && refused.Code == rpc.Unimplemented &&
		strings.HasPrefix(refused.Message, "unknown service") {
		return nil, fmt.Errorf("%w (%s)", ErrNotLoaded, refused.Message)
	}
	return reply, err
}

// Ask returns the status of the runtime that listens on a Unix socket. The error wraps an *rpc.Error if the runtime
// itself returned it.
func Ask(ctx context.Context, socketPath string) (*Info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c := rpc.NewConn(socketPath)
	defer c.Close()
	raw, err := call(ctx, c, "Version", nil)
	if err != nil {
		return nil, fmt.Errorf("query the container runtime: %w", err)
	}
	info := &Info{}
	if info.Name, info.Version, err = decodeVersion(raw); err != nil {
		return nil, fmt.Errorf("decode the container runtime's version: %w", err)
	}
	if raw, err = call(ctx, c, "Status", verboseStatus()); err != nil {
		return nil, fmt.Errorf("get the status of %s %s: %w", info.Name, info.Version, err)
	}
	if err := decodeStatus(raw, info); err != nil {
		return nil, fmt.Errorf("decode the status of %s %s: %w", info.Name, info.Version, err)
	}
	return info, nil
}

// WaitReady polls until the runtime responds and is ready. If ctx ends first, the error contains the last problem.
func WaitReady(ctx context.Context, socketPath string, interval time.Duration) (*Info, error) {
	var last error
	for {
		info, err := Ask(ctx, socketPath)
		switch {
		case err == nil && info.Ready:
			return info, nil
		case err == nil:
			last = fmt.Errorf("%s %s responds, but is not ready: %s", info.Name, info.Version, info.NotReady)
		case ctx.Err() == nil || last == nil: // ignore an Ask that ctx interrupted
			last = err
		}
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w; %w", context.Cause(ctx), last)
		}
	}
}

// Package cri asks a container runtime about itself, over its CRI socket.
//
// It is a part of the helper, which is streamed to every node that is worked on, and of which the client carries two:
// so it speaks the little of gRPC and HTTP/2 that two calls without streams need by itself. net/http, which brings TLS,
// costs 1.2 MB, compressed; google.golang.org/grpc with k8s.io/cri-api costs 3.1 MB (measured on amd64 with -s -w and
// gzip -9).
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Info is what a container runtime says about itself: CRI's Version and Status(verbose).
type Info struct {
	Name    string `json:"name"`    // containerd, cri-o
	Version string `json:"version"` // v2.3.7, 1.7.28
	// Ready is the RuntimeReady condition.
	Ready bool `json:"ready"`
	// NotReady is what the runtime says about why it is not: reason and message.
	NotReady string `json:"notReady,omitempty"`
	// Handlers are RuntimeHandlers: containerd 2.0 and later; empty before.
	Handlers []string `json:"handlers,omitempty"`
	// Config is info["config"], the configuration in memory; containerd of all versions shows it.
	Config json.RawMessage `json:"config,omitempty"`
}

// ErrNotLoaded is in the error when the socket answers, but knows no CRI: containerd runs, and its CRI plugin is
// disabled or did not load.
var ErrNotLoaded = errors.New("it has no CRI: the plugin is disabled, or did not load")

// askTimeout bounds one Ask: a runtime answers within milliseconds, or hangs.
const askTimeout = 10 * time.Second

const service = "runtime.v1.RuntimeService"

// Ask asks the runtime that listens at a unix socket. An *Error in its error is the runtime's own answer.
func Ask(ctx context.Context, socketPath string) (*Info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := dial(ctx, socketPath)
	if err != nil {
		return nil, fmt.Errorf("ask the container runtime: %w", err)
	}
	defer c.close()

	raw, err := c.call(ctx, "Version", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the container runtime: %w", err)
	}
	info := &Info{}
	if info.Name, info.Version, err = decodeVersion(raw); err != nil {
		return nil, fmt.Errorf("the container runtime's version is not understood: %w", err)
	}
	if raw, err = c.call(ctx, "Status", verboseStatus()); err != nil {
		return nil, fmt.Errorf("ask %s %s for its status: %w", info.Name, info.Version, err)
	}
	if err := decodeStatus(raw, info); err != nil {
		return nil, fmt.Errorf("the status of %s %s is not understood: %w", info.Name, info.Version, err)
	}
	return info, nil
}

// WaitReady asks every interval until the runtime answers and is ready. When ctx ends before, the error has the last
// thing that was wrong.
func WaitReady(ctx context.Context, socketPath string, interval time.Duration) (*Info, error) {
	var last error
	for {
		info, err := Ask(ctx, socketPath)
		switch {
		case err == nil && info.Ready:
			return info, nil
		case err == nil:
			last = fmt.Errorf("%s %s answers, but is not ready: %s", info.Name, info.Version, info.NotReady)
		case ctx.Err() == nil || last == nil: // an Ask that was cut short tells nothing
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

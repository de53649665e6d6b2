//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"runtime"
)

type linux struct{}

// Main returns at once: there is nothing to do in the sandbox's first process.
func Main() {}

// New returns ErrUnavailable.
func New(int) (*Sandbox, error) {
	return nil, fmt.Errorf("%w: namespaces exist on Linux only, not on %s", ErrUnavailable, runtime.GOOS)
}

// Run is never called, because New fails.
func (s *Sandbox) Run(context.Context, Program) (Result, error) {
	return Result{Exit: -1}, ErrUnavailable
}

// Close does nothing.
func (s *Sandbox) Close() error { return nil }

//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"io"
	"runtime"
)

type linux struct{}

// First returns false, because there are no sandboxes.
func First([]string, io.Writer, io.Writer) (int, bool) { return 0, false }

// New returns ErrUnavailable.
func New(int) (*Sandbox, error) {
	return nil, fmt.Errorf("%w: namespaces exist only on Linux, not on %s", ErrUnavailable, runtime.GOOS)
}

// Run is never called, because New fails.
func (s *Sandbox) Run(context.Context, Program) (Result, error) {
	return Result{Exit: -1}, ErrUnavailable
}

// Close does nothing.
func (s *Sandbox) Close() error { return nil }

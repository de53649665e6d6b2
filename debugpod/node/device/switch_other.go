//go:build !linux

package device

import (
	"context"
	"errors"
	"os"
)

var errUnsupported = errors.New("making devices unhealthy is supported only on Linux")

// The arguments with which this program starts the processes of a fault.
const (
	SwitchArgument   = "device-switch"
	InjectorArgument = "device-injector"
)

func here() node { return node{} }

// Main runs a process of a fault.
func Main(string, string, *os.File) error { return errUnsupported }

func (n node) start(context.Context, string) (status, error) { return status{}, errUnsupported }
func (n node) stop(context.Context, string) error            { return errUnsupported }

func (node) running(string) map[int]string { return nil }

//go:build !linux

package hostexec

import (
	"context"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func Run(context.Context, Command) (string, error) { return "", hostfs.ErrLinuxOnly }

func Output(context.Context, hostfs.FS, string, ...string) (string, error) {
	return "", hostfs.ErrLinuxOnly
}

func IsExit(error) bool { return false }

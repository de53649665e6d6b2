//go:build !linux

package module

import (
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func mountNode(hostfs.Host, string) (unmount func() error, err error) {
	return nil, errors.New("mount namespaces are supported only on Linux")
}

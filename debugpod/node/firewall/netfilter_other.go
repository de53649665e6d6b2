//go:build !linux

package firewall

import (
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func openFilter(hostfs.Host) (packetFilter, error) {
	return nil, errors.New("nftables is supported only on Linux")
}

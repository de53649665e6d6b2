//go:build !linux

package firewall

import (
	"errors"
	"net/netip"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func openFilter(hostfs.Host) (packetFilter, error) {
	return nil, errors.New("nftables is supported only on Linux")
}

// Rules is supported only on Linux.
func Rules(hostfs.Host) (map[string]string, error) { return nil, errors.ErrUnsupported }

// podNetworks is the prober for a node.
type podNetworks struct{}

func newPodNetworks(string, func([]string) map[string]int) podNetworks { return podNetworks{} }

func (podNetworks) locate([]api.PartitionedPod) []string { return nil }

func (podNetworks) check(api.PartitionedPod) error { return errors.ErrUnsupported }

func (podNetworks) resolvers(api.PartitionedPod) []netip.Addr { return nil }

func (podNetworks) send(api.PartitionedPod, packet) error { return errors.ErrUnsupported }

func (podNetworks) answer(api.PartitionedPod, packet, time.Duration) (time.Duration, error) {
	return 0, errors.ErrUnsupported
}

func (podNetworks) links([]api.PartitionedPod) ([]podLink, error) { return nil, errors.ErrUnsupported }

package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// podLink is the link between a pod and its node, identified by the indexes of both ends in their network namespaces.
type podLink struct {
	pod         string // NAMESPACE/NAME
	node, inPod int32
}

// qdiscClass is the minor number of the class for the run's packets.
const qdiscClass = 1

// slowError describes why a link cannot be slowed down. Nothing was changed.
type slowError struct{ why string }

func (e slowError) Error() string { return e.why }

// errNoAnswer reports that a peer did not respond in time.
var errNoAnswer = errors.New("no response")

// slowed slows down the links of pods. Unless the error has CodeFilter, nothing was changed.
func slowed(run string, p api.Partition, filter packetFilter, from prober) (links []podLink, _ *api.Error) {
	links, err := from.links(p.Pods)
	if err == nil {
		err = filter.slow(run, links, *p.Slow)
	} else {
		err = slowError{err.Error()}
	}
	switch refused := (slowError{}); {
	case errors.As(err, &refused):
		return nil, api.Errorf(api.CodeNoFilter, "nothing was changed: %v", refused)
	case err != nil:
		return nil, api.Errorf(api.CodeFilter, "slow down the pods: %v", err)
	}
	return links, nil
}

// slack is the time by which a response may arrive earlier than the latency, because the kernel's timer and the clock
// are not exact.
const slack = time.Millisecond

// probeSlow connects from a pod to a peer until a response has passed through the class and has taken at least as long
// as the latency.
func (r partitionRule) probeSlow(
	pods []api.PartitionedPod, from prober, counter func() (uint64, error),
) (proof string, _ error) {
	if r.Protocol == api.ProtocolUDP || r.DestinationPort != 0 {
		return "", errNoTCP
	}
	pod, packets, err := r.sender(pods, from, r.connections)
	if err != nil {
		return "", err
	}
	var tried []string
	for _, p := range packets {
		before, err := counter()
		if err != nil {
			return "", err
		}
		took, err := from.answer(pod, p, r.slow.Latency+r.slow.Jitter+lastProbe)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s (%v)", p.to, err))
			continue
		}
		after, err := counter()
		switch {
		case err != nil:
			return "", err
		case after <= before:
			tried = append(tried, fmt.Sprintf("%s (the response was not delayed)", p.to))
		case took < r.slow.Latency-r.slow.Jitter-slack:
			tried = append(tried, fmt.Sprintf("%s (responded in %s)", p.to, took.Round(time.Microsecond)))
		default:
			took = took.Round(time.Millisecond / 10)
			return fmt.Sprintf("a response from %s to pod %s was delayed and took %s", p.to, pod.Name, took), nil
		}
	}
	return "", fmt.Errorf("pod %s connected to %s, but no response was delayed: the peer does not respond, or the node's "+
		"network does not pass packets to its pods through netfilter and the pods' links (eBPF)", pod.Name,
		strings.Join(tried, ", "))
}

// errNoTCP reports that a connection cannot verify the rule, because the rule is for another protocol or selects the
// pods' own ports.
var errNoTCP = errors.New("only TCP connections from the pods to their peers can be verified")

// connections returns the first packets of connections to the peer and to a pod's DNS servers.
func (r partitionRule) connections(resolvers []netip.Addr) (all []packet) {
	const dnsPort = 53
	add := func(address netip.Addr, port int) {
		p := packet{netip.AddrPortFrom(address, uint16(port)), true}
		if address.Is6() == r.v6 && (!r.Peer.IsValid() || r.Peer.Contains(address)) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, address := range r.Probes {
		add(address, cmp.Or(r.SourcePort, discardPort))
	}
	for _, address := range resolvers {
		add(address, cmp.Or(r.SourcePort, dnsPort))
	}
	return all
}

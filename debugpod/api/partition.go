package api

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Partition drops forwarded packets between pods on the node and their peers, or slows them down. Packets between a pod
// and its own node, such as the kubelet's probes, are not forwarded and always pass.
type Partition struct {
	Pods    []PartitionedPod `json:"pods"`
	Matches []Match          `json:"matches"` // a packet is dropped if it matches one of these
	// Loss is the percentage of these packets to drop at random. 0 means all of them.
	Loss int `json:"loss,omitempty"`
	// Slow means that the packets that the pods receive are slowed down instead of dropped.
	Slow *Slow `json:"slow,omitempty"`
}

// Slow describes how packets on the link from the node to a pod are slowed down.
type Slow struct {
	Latency time.Duration `json:"latency,omitempty"` // delay of each packet
	Jitter  time.Duration `json:"jitter,omitempty"`  // maximum random variation of the latency, in both directions
	Rate    uint64        `json:"rate,omitempty"`    // maximum rate in bits per second; 0 means no limit
}

// The limits for Slow. At the minimum rate, a full-size packet takes one and a half seconds.
const (
	MaxLatency = time.Minute
	MinRate    = 8_000
	MaxRate    = 100_000_000_000
)

// String describes how packets are slowed down, such as "latency 100ms ± 20ms, rate 10M bit/s".
func (s Slow) String() string {
	var parts []string
	if s.Latency > 0 {
		parts = append(parts, "latency "+s.Latency.String())
	}
	if s.Jitter > 0 {
		parts[0] += " ± " + s.Jitter.String()
	}
	if s.Rate > 0 {
		rate, unit := s.Rate, ""
		for _, next := range []string{"k", "M", "G"} {
			if rate%1000 == 0 {
				rate, unit = rate/1000, next
			}
		}
		parts = append(parts, fmt.Sprintf("rate %d%s bit/s", rate, unit))
	}
	return strings.Join(parts, ", ")
}

func (s Slow) validate() error {
	switch {
	case s == Slow{}:
		return errors.New("neither added latency nor a rate limit is specified")
	case s.Latency < 0 || s.Latency > MaxLatency:
		return fmt.Errorf("invalid latency %s: must be at most %s", s.Latency, MaxLatency)
	case s.Jitter < 0 || s.Jitter > s.Latency:
		return fmt.Errorf("invalid jitter %s: must be at most the latency, %s", s.Jitter, s.Latency)
	case s.Rate != 0 && (s.Rate < MinRate || s.Rate > MaxRate):
		return fmt.Errorf("invalid rate %d bit/s: must be %d to %d", s.Rate, MinRate, MaxRate)
	}
	return nil
}

// PartitionedPod is a pod with its own network.
type PartitionedPod struct {
	Name      string       `json:"name"` // NAMESPACE/NAME, for messages
	UID       string       `json:"uid"`
	Addresses []netip.Addr `json:"addresses"`
}

// Match selects packets between the pods and a peer.
type Match struct {
	// Received selects packets that the pods receive from the peer, instead of packets that they send to it.
	Received bool `json:"received,omitempty"`
	// Peer contains the addresses of the peer. The zero value means any address.
	Peer netip.Prefix `json:"peer,omitzero"`
	// Protocol is ProtocolTCP or ProtocolUDP, or empty for all protocols. Ports require a protocol.
	Protocol        string `json:"protocol,omitempty"`
	DestinationPort int    `json:"destinationPort,omitempty"` // 0 means all
	SourcePort      int    `json:"sourcePort,omitempty"`      // 0 means all
	// Probes are addresses of the peer to which the helper may send a packet to verify the rule. If there are none, it
	// uses the DNS servers in the pod's /etc/resolv.conf. Slow can be verified only if the peer responds; a rejected
	// connection to a closed TCP port is sufficient.
	Probes []netip.Addr `json:"probes,omitempty"`
}

// The values of Match.Protocol.
const (
	ProtocolTCP = "tcp"
	ProtocolUDP = "udp"
)

// The limits for a Partition.
const (
	MaxPartitionedPods = 512
	MaxMatches         = 72 // 16 peers and DNS, in both directions, for both protocols, with some reserve
	maxAddresses       = 8  // addresses of a pod, and probes of a match
)

// podUIDs matches pod UIDs. The UID of a static pod is a hash.
var podUIDs = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (p Partition) validate() error {
	if len(p.Pods) == 0 || len(p.Pods) > MaxPartitionedPods {
		return fmt.Errorf("invalid partition of %s: must have 1 to %d", count.Of(len(p.Pods), "pod"),
			MaxPartitionedPods)
	}
	if p.Loss < 0 || p.Loss > 99 {
		return fmt.Errorf("invalid loss %d%%: must be 1 to 99", p.Loss)
	}
	if len(p.Matches) == 0 || len(p.Matches) > MaxMatches {
		return fmt.Errorf("invalid partition with %s: must have 1 to %d", count.Of(len(p.Matches), "rule"),
			MaxMatches)
	}
	for _, pod := range p.Pods {
		if err := pod.validate(); err != nil {
			return fmt.Errorf("pod %q: %w", pod.Name, err)
		}
	}
	if p.Slow != nil {
		if err := p.Slow.validate(); err != nil {
			return err
		}
		if p.Loss > 0 {
			return errors.New("packet loss cannot be combined with added latency or a rate limit")
		}
	}
	for _, m := range p.Matches {
		if err := m.validate(); err != nil {
			return err
		}
		if p.Slow != nil && !m.Received {
			return errors.New("only packets that the pods receive can be slowed down")
		}
		if m.Peer.IsValid() && !p.HasFamily(m.Peer.Addr().Is6()) {
			return fmt.Errorf("no pod in the partition has an address of the same family as the peer %s", m.Peer)
		}
	}
	return nil
}

// HasFamily reports whether a pod in the partition has an IPv6 address (if v6 is true) or an IPv4 address.
func (p Partition) HasFamily(v6 bool) bool {
	for _, pod := range p.Pods {
		for _, address := range pod.Addresses {
			if address.Is6() == v6 {
				return true
			}
		}
	}
	return false
}

func (p PartitionedPod) validate() error {
	if !podUIDs.MatchString(p.UID) {
		return fmt.Errorf("invalid UID %q", p.UID)
	}
	if len(p.Addresses) == 0 || len(p.Addresses) > maxAddresses {
		return fmt.Errorf("has %s: must have 1 to %d", count.Of(len(p.Addresses), "address"), maxAddresses)
	}
	for _, address := range p.Addresses {
		if !IsHostAddress(address) {
			return fmt.Errorf("invalid address %q", address)
		}
	}
	return nil
}

// IsHostAddress reports whether an address can be the address of a pod or a peer.
func IsHostAddress(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

func (m Match) validate() error {
	hasPort := m.DestinationPort != 0 || m.SourcePort != 0
	switch {
	case m.Peer != netip.Prefix{} && (!m.Peer.IsValid() || m.Peer != m.Peer.Masked() || m.Peer.Addr().Is4In6()):
		return fmt.Errorf("invalid peer %q", m.Peer)
	case m.Protocol != "" && m.Protocol != ProtocolTCP && m.Protocol != ProtocolUDP:
		return fmt.Errorf("invalid protocol %q: must be tcp or udp", m.Protocol)
	case hasPort && m.Protocol == "":
		return errors.New("a port requires a protocol")
	case !isPort(m.DestinationPort) || !isPort(m.SourcePort):
		return fmt.Errorf("invalid port %d or %d: each must be 0 to 65535", m.DestinationPort, m.SourcePort)
	case len(m.Probes) > maxAddresses:
		return fmt.Errorf("a rule has %s: must have at most %d", count.Of(len(m.Probes), "probe"), maxAddresses)
	}
	for _, probe := range m.Probes {
		if !IsHostAddress(probe) || m.Peer.IsValid() && !m.Peer.Contains(probe) {
			return fmt.Errorf("invalid probe %q for the peer %s", probe, m.Peer)
		}
	}
	return nil
}

func isPort(port int) bool { return port >= 0 && port <= 65535 }

// PartitionTable returns the name of the table of a run's partition.
func PartitionTable(run string) string { return "gpu-fault-" + shortHash(run) }

// PartitionSet returns the name of the set, in a run's table, that contains the IPv4 or IPv6 addresses of the pods.
func PartitionSet(run string, v6 bool) string {
	if v6 {
		return "pods6-" + shortHash(run)
	}
	return "pods-" + shortHash(run)
}

// QdiscHandle returns the major number of a run's queueing disciplines (qdiscs). The kernel itself assigns only numbers
// from 0x8000.
func QdiscHandle(run string) uint16 {
	sum := sha256.Sum256([]byte(run))
	return 0x6000 | binary.BigEndian.Uint16(sum[:])&0xfff
}

package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// partitionRule is a rule of a partition. Each match has one rule for each address family to which it can apply.
type partitionRule struct {
	api.Match
	v6   bool
	run  string
	loss int       // see api.Partition
	slow *api.Slow // likewise
}

// rulesOf returns the rules of a partition, in the order in which they are added.
func rulesOf(p api.Partition, run string) (rules []partitionRule) {
	for _, m := range p.Matches {
		for _, v6 := range []bool{false, true} {
			if p.HasFamily(v6) && (!m.Peer.IsValid() || m.Peer.Addr().Is6() == v6) {
				rules = append(rules, partitionRule{m, v6, run, p.Loss, p.Slow})
			}
		}
	}
	return rules
}

// text returns the rule in nft syntax.
func (r partitionRule) text() string {
	family, pods, peer := "ip", "saddr", "daddr"
	if r.v6 {
		family = "ip6"
	}
	if r.Received {
		pods, peer = peer, pods
	}
	words := []string{family, pods, "@" + api.PartitionSet(r.run, r.v6)}
	switch {
	case r.Peer.IsSingleIP():
		words = append(words, family, peer, r.Peer.Addr().String())
	case r.Peer.Bits() > 0:
		words = append(words, family, peer, r.Peer.String())
	}
	switch {
	case r.SourcePort > 0:
		words = append(words, r.Protocol, "sport", fmt.Sprint(r.SourcePort))
	case r.Protocol != "" && r.DestinationPort == 0:
		words = append(words, "meta l4proto", r.Protocol)
	}
	if r.DestinationPort > 0 {
		words = append(words, r.Protocol, "dport", fmt.Sprint(r.DestinationPort))
	}
	if r.loss > 0 {
		words = append(words, fmt.Sprintf("numgen random mod 100 < %d", r.loss))
	}
	if r.slow != nil {
		words = append(words, fmt.Sprintf("counter meta priority set %x:%x", api.QdiscHandle(r.run), qdiscClass))
	} else {
		words = append(words, "counter drop")
	}
	return strings.Join(words, " ")
}

// addressesOf returns the addresses of a partition's pods.
func addressesOf(p api.Partition) (all []netip.Addr) {
	for _, pod := range p.Pods {
		all = append(all, pod.Addresses...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// prober sends packets from pods, as the pods' own programs would.
type prober interface {
	// locate finds a process for each pod, and returns the names of the pods that have none.
	locate(pods []api.PartitionedPod) (missing []string)
	// check returns an error if no packet can be sent from the pod, for example after the pod has terminated.
	check(pod api.PartitionedPod) error
	// resolvers returns the pod's DNS servers.
	resolvers(pod api.PartitionedPod) []netip.Addr
	// send sends one packet from one of the pod's addresses, in the pod's network namespace.
	send(pod api.PartitionedPod, p packet) error
	// answer sends the first packet of a TCP connection, and returns the response time. A rejection is also a response.
	answer(pod api.PartitionedPod, p packet, limit time.Duration) (time.Duration, error)
	// links returns the links of the pods with their addresses.
	links(pods []api.PartitionedPod) ([]podLink, error)
}

// packet is a packet to send: a datagram, or the first packet of a TCP connection.
type packet struct {
	to  netip.AddrPort
	tcp bool
}

func (p packet) String() string {
	if p.tcp {
		return "a TCP packet to " + p.to.String()
	}
	return "a UDP packet to " + p.to.String()
}

// discardPort is the destination of probes if the rule has no port (RFC 863). Servers rarely listen there.
const discardPort = 9

// covers reports whether the rule drops the packet from a pod.
func (r partitionRule) covers(p packet) bool {
	address := p.to.Addr()
	return !r.Received && r.SourcePort == 0 && r.v6 == address.Is6() &&
		(!r.Peer.IsValid() || r.Peer.Contains(address)) &&
		(r.Protocol == "" || (r.Protocol == api.ProtocolTCP) == p.tcp) &&
		(r.DestinationPort == 0 || r.DestinationPort == int(p.to.Port()))
}

// packetsFor returns the packets that the rule should drop, one for each address to try.
func (r partitionRule) packetsFor(resolvers []netip.Addr) (all []packet) {
	port := uint16(r.DestinationPort)
	if port == 0 {
		port = discardPort
	}
	candidates := r.Probes
	if len(candidates) == 0 {
		candidates = resolvers
	}
	for _, address := range candidates {
		if address.Is6() == r.v6 && (!r.Peer.IsValid() || r.Peer.Contains(address)) {
			all = append(all, packet{netip.AddrPortFrom(address, port), r.Protocol == api.ProtocolTCP})
		}
	}
	return all
}

// The times after which a packet counts as not dropped by the rule. On a busy node, the last packet may be late.
const (
	eachProbe = 200 * time.Millisecond
	lastProbe = 2 * time.Second
)

// buildPartition handles a Firewall with a partition. It removes the rules if they cannot be verified. Unless the error
// has CodeFilter, no rule remains.
func buildPartition(run string, f api.Firewall, filter packetFilter, from prober) (*api.BuiltFirewall, *api.Error) {
	// The address of a pod that has terminated since the client read it may now belong to another pod.
	if missing := from.locate(f.Partition.Pods); len(missing) > 0 {
		return nil, api.Errorf(api.CodeNotRunning, "nothing was changed: no process of %s is running on the node: "+
			"the pod was replaced, has terminated or is restarting; try again", abridged(missing, ", "))
	}
	var links []podLink
	if f.Partition.Slow != nil {
		var failure *api.Error
		if links, failure = slowed(run, *f.Partition, filter, from); failure != nil {
			return nil, failure
		}
	}
	if failure := blocked(run, f, filter); failure != nil {
		if _, err := filter.unslow(run); err != nil {
			return nil, api.Errorf(api.CodeFilter, "%s; %v", failure.Message, err)
		}
		return nil, failure
	}
	built, failure := readPartition(run, f, filter)
	if failure == nil {
		built.links = links
		failure = built.probe(run, f, filter, from)
	}
	if failure == nil {
		return &built.BuiltFirewall, nil
	}
	// The connection may have failed, or its timeout may have expired.
	if err := filter.fresh(); err != nil {
		return nil, api.Errorf(api.CodeFilter, "%s; could not remove the table inet %s: "+
			"%v", failure.Message, f.Table, err)
	}
	if _, err := removeAll(run, api.RemoveFirewall{}, filter); err != nil {
		return nil, api.Errorf(api.CodeFilter, "%s; %s", failure.Message, err.Message)
	}
	return nil, api.Errorf(failure.Code, "%s; the rules were removed", failure.Message)
}

// builtPartition is a partition that exists in the kernel.
type builtPartition struct {
	api.BuiltFirewall
	rules []partitionRule
	links []podLink // links that are slowed down
}

// readPartition reads the rules back from the kernel.
func readPartition(run string, f api.Firewall, filter packetFilter) (*builtPartition, *api.Error) {
	table, err := filter.look(f.Table, run)
	if err != nil {
		return nil, api.Errorf(api.CodeFilter, "the table inet %s was created but cannot be read back: %v", f.Table, err)
	}
	built := &builtPartition{rules: rulesOf(*f.Partition, run)}
	if table == nil || len(table.rules) != len(built.rules) {
		return nil, api.Errorf(api.CodeNotProven,
			"the table inet %s was created but differs from the request when read back", f.Table)
	}
	var texts, addresses []string
	for i, rule := range built.rules {
		if table.rules[i].run != run {
			return nil, api.Errorf(api.CodeNotProven, "the table inet %s contains a rule from another client", f.Table)
		}
		texts = append(texts, rule.text())
	}
	for _, address := range addressesOf(*f.Partition) {
		left := table.pods[address]
		if left <= 0 {
			return nil, api.Errorf(api.CodeNotProven, "the table inet %s was created without the address "+
				"%s", f.Table, address)
		}
		if built.Expires == 0 || left < built.Expires {
			built.Expires = left
		}
		addresses = append(addresses, address.String())
	}
	built.Rule = fmt.Sprintf("table inet %s: chain %s: %s; pods = {%s}", f.Table, forwardChain, abridged(texts, "; "),
		abridged(addresses, ", "))
	if s := f.Partition.Slow; s != nil {
		built.Rule += fmt.Sprintf("; qdisc %x: %s", api.QdiscHandle(run), s)
	}
	return built, nil
}

// mostShown is the maximum number of list items in the evidence.
const mostShown = 4

func abridged(items []string, separator string) string {
	if len(items) <= mostShown {
		return strings.Join(items, separator)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(items[:mostShown], separator), separator, len(items)-mostShown)
}

// The reasons why a rule is not verified by a packet.
var (
	errNoAddress  = errors.New("no address found to which the pod could send a packet")
	errOwnAddress = errors.New("the peer itself is the only selected pod on the node that could send a packet")
)

// probe verifies that the rules drop or slow down the packets that the partition's pods can send. It reads the counters
// of the rules or of the queueing disciplines.
func (b *builtPartition) probe(run string, f api.Firewall, filter packetFilter, from prober) *api.Error {
	var unprobed *api.Error
	for _, rule := range b.rules {
		if rule.Received && rule.slow == nil {
			b.Unprobed++
			continue
		}
		if err := filter.fresh(); err != nil {
			return api.Errorf(api.CodeFilter, "read the counters of the rules: %v", err)
		}
		var text string
		var err error
		if rule.slow != nil {
			passed := func() (uint64, error) { return filter.passed(run, b.links) }
			text, err = rule.probeSlow(f.Partition.Pods, from, passed)
		} else {
			text, err = rule.probe(f.Partition.Pods, from,
				func(p packet) (uint64, error) { return b.dropped(p, run, f.Table, filter) })
		}
		switch {
		case errors.Is(err, errOwnAddress) || errors.Is(err, errNoTCP):
			b.Unprobed++
		case errors.Is(err, errNoAddress):
			b.Unprobed++
			unprobed = api.Errorf(api.CodeBypassed, "rule %q: %v", rule.text(), err)
		case err != nil:
			return api.Errorf(api.CodeBypassed, "rule %q: %v", rule.text(), err)
		default:
			b.Probes = append(b.Probes, text)
		}
	}
	if len(b.Probes) == 0 {
		return unprobed
	}
	return nil
}

// dropped returns the sum of the counters of all rules that cover the packet. If peers overlap, the first of these
// rules drops it.
func (b *builtPartition) dropped(p packet, run, name string, filter packetFilter) (all uint64, _ error) {
	table, err := filter.look(name, run)
	if err != nil {
		return 0, fmt.Errorf("read the counters of the rules: %w", err)
	}
	if table == nil || len(table.rules) != len(b.rules) {
		return 0, errors.New("another client changed the rules")
	}
	for i, rule := range b.rules {
		if rule.covers(p) {
			all += table.rules[i].packets
		}
	}
	return all, nil
}

// probe sends packets that the rule should drop, from one of the pods, until the counter increases. It returns a
// description of what was sent.
func (r partitionRule) probe(
	pods []api.PartitionedPod, from prober, counter func(packet) (uint64, error),
) (sent string, _ error) {
	pod, packets, err := r.sender(pods, from, r.packetsFor)
	if err != nil {
		return "", err
	}
	var tried []string
	for i, p := range packets {
		before, err := counter(p)
		if err != nil {
			return "", err
		}
		tried = append(tried, r.describe(p))
		for range r.attempts() {
			if err := from.send(pod, p); err != nil {
				tried[i] += fmt.Sprintf(" (%v)", err)
				break
			}
		}
		wait := eachProbe
		if i == len(packets)-1 {
			wait = lastProbe
		}
		risen, err := rises(func() (uint64, error) { return counter(p) }, before, wait)
		if err != nil {
			return "", err
		}
		if risen {
			return fmt.Sprintf("%s from pod %s", r.describe(p), pod.Name), nil
		}
	}
	return "", fmt.Errorf("pod %s sent %s, but no packet reached the rule: the node's network does not pass "+
		"packets from its pods through netfilter (eBPF), or the address belongs to the node itself or is not routable",
		pod.Name, strings.Join(tried, ", "))
}

// attempts returns the number of packets to send so that the rule drops at least one, except in one case in a million.
func (r partitionRule) attempts() int {
	if r.loss == 0 {
		return 1
	}
	const unlikely = 1e-6
	return int(math.Ceil(math.Log(unlikely) / math.Log(1-float64(r.loss)/100)))
}

func (r partitionRule) describe(p packet) string {
	if n := r.attempts(); n > 1 {
		return fmt.Sprintf("some of the copies (%d) of %s", n, p)
	}
	return p.String()
}

// sender returns the first pod that can send packets for the rule, and the packets, which may depend on the pod's DNS
// servers. A pod sends packets to its own address over loopback, so rules do not apply to them.
func (r partitionRule) sender(
	pods []api.PartitionedPod, from prober, packetsFor func(resolvers []netip.Addr) []packet,
) (_ api.PartitionedPod, _ []packet, failed error) {
	for _, pod := range pods {
		if !(api.Partition{Pods: []api.PartitionedPod{pod}}).HasFamily(r.v6) {
			continue
		}
		if err := from.check(pod); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("pod %s: %w", pod.Name, err))
			continue
		}
		packets := packetsFor(from.resolvers(pod))
		if len(packets) == 0 {
			failed = fmt.Errorf("pod %s: %w", pod.Name, errNoAddress)
			continue
		}
		packets = slices.DeleteFunc(packets, func(p packet) bool { return slices.Contains(pod.Addresses, p.to.Addr()) })
		if len(packets) > 0 {
			return pod, packets, nil
		}
		failed = errOwnAddress
	}
	return api.PartitionedPod{}, nil, failed
}

// rises reports whether the counter rises above a value in time.
func rises(counter func() (uint64, error), above uint64, wait time.Duration) (bool, error) {
	for until := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		now, err := counter()
		if err != nil || now > above {
			return err == nil, err
		}
		if time.Now().After(until) {
			return false, nil
		}
	}
}

package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Peers that are specified by a name.
const (
	peerAny = "any"
	peerDNS = "dns"
)

// maxPeers is the maximum number of peers in each direction.
const maxPeers = 16

// peer is a value of --to or --from. If it is neither a pod nor a network, it stands for any address.
type peer struct {
	text            string
	dns             bool
	network         netip.Prefix
	namespace, name string // of a pod; an empty namespace means the value of -n
}

// parsePeers parses the values of a flag.
func parsePeers(flag string, values []string) (all []peer, _ error) {
	for _, text := range values {
		p, err := parsePeer(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("invalid value %q for --%s: %w", text, flag, err)
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	isAny := func(p peer) bool { return p.text == peerAny }
	switch {
	case len(all) > maxPeers:
		return nil, fmt.Errorf("--%s has %s, but the maximum is %d", flag, count.Of(len(all), "peer"), maxPeers)
	case len(all) > 1 && slices.ContainsFunc(all, isAny):
		return nil, fmt.Errorf("--%s any already includes all other peers", flag)
	}
	return all, nil
}

var errPeer = errors.New("must be an IP address, a CIDR such as 10.0.0.0/8, pod/NAME, pod/NAMESPACE/NAME, dns or any")

func parsePeer(text string) (peer, error) {
	p := peer{text: text, dns: text == peerDNS}
	if p.dns || text == peerAny {
		return p, nil
	}
	kind, rest, found := strings.Cut(text, "/")
	switch {
	case found && (kind == "pod" || kind == "pods"):
		return p.ofPod(rest)
	case found && slices.Contains([]string{"svc", "service", "services"}, kind):
		return p, errors.New("packets to a Service carry the destination address of the pod behind it: " +
			"specify the pods")
	case strings.HasPrefix(text, "-"):
		return p, fmt.Errorf("%w; is a value missing?", errPeer)
	}
	if address, err := netip.ParseAddr(text); err == nil {
		if !api.IsHostAddress(address) {
			return p, errors.New("must be the address of another host; for any address, use any")
		}
		p.network = netip.PrefixFrom(address, address.BitLen())
		return p, nil
	}
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil || network.Addr().Is4In6():
		return p, errPeer
	case network != network.Masked():
		return p, fmt.Errorf("the address has host bits set: use %s or %s", network.Masked(), network.Addr())
	}
	p.network = network
	return p, nil
}

// ofPod returns the peer NAME or NAMESPACE/NAME.
func (p peer) ofPod(text string) (peer, error) {
	p.namespace, p.name, _ = strings.Cut(text, "/")
	if !strings.Contains(text, "/") {
		p.namespace, p.name = "", text
	}
	if len(validation.IsDNS1123Subdomain(p.name)) > 0 ||
		strings.Contains(text, "/") && len(validation.IsDNS1123Label(p.namespace)) > 0 {
		return p, errors.New("must be pod/NAME or pod/NAMESPACE/NAME")
	}
	return p, nil
}

// find returns the running pod of the peer. The pod has at least one address.
func (p peer) find(ctx context.Context, client kubernetes.Interface, namespace string) (*corev1.Pod, error) {
	if p.namespace != "" {
		namespace = p.namespace
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, p.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("peer %s: pod %q not found in namespace %q", p.text, p.name, namespace)
	case err != nil:
		return nil, kube.Explain(fmt.Errorf("peer %s: %w", p.text, err))
	case pod.Spec.HostNetwork:
		return nil, fmt.Errorf("peer %s uses the node's network: to cut off the entire node, specify the node's address %s",
			p.text, pod.Status.HostIP)
	}
	if len(addressesOf(pod)) == 0 || pod.Status.Phase != corev1.PodRunning {
		return nil, fmt.Errorf("peer %s has no address (phase %s): wait until the pod is running", p.text, pod.Status.Phase)
	}
	return pod, nil
}

// addressesOf returns the addresses of a pod.
func addressesOf(pod *corev1.Pod) (all []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, address)
		}
	}
	return all
}

// resolver resolves peers to matches.
type resolver struct {
	client    kubernetes.Interface
	namespace string // namespace of pods specified without one
	protocol  string
	port      int
	nodes     []corev1.Node
	answers   bool // received packets are verified through responses from peers
}

// match is a match whose probes are not known yet, because they depend on the node.
type match struct {
	api.Match
	dns bool
}

// matches returns the matches for a direction.
func (r resolver) matches(ctx context.Context, peers []peer, received bool) (all []match, _ error) {
	for _, p := range peers {
		networks := []netip.Prefix{p.network}
		if p.name != "" {
			pod, err := p.find(ctx, r.client, r.namespace)
			if err != nil {
				return nil, err
			}
			networks = nil
			for _, a := range addressesOf(pod) {
				networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		for _, network := range networks {
			all = append(all, r.expand(match{api.Match{Received: received, Peer: network}, p.dns})...)
		}
	}
	return all, nil
}

// expand returns the match for each protocol, with its ports.
func (r resolver) expand(m match) (all []match) {
	protocols := []string{r.protocol}
	if r.protocol == "" && (m.dns || r.port != 0) {
		protocols = []string{api.ProtocolTCP, api.ProtocolUDP}
	}
	for _, protocol := range protocols {
		m.Protocol, m.DestinationPort = protocol, r.port
		switch {
		case m.dns && m.Received:
			m.SourcePort = dnsPort
		case m.dns:
			m.DestinationPort = dnsPort
		}
		all = append(all, m)
	}
	return all
}

const dnsPort = 53

// forNode returns the matches for a node, with addresses to which the node's pods can send packets. For DNS, the helper
// uses the servers in the resolv.conf of a pod.
func (r resolver) forNode(matches []match, node string) (all []api.Match) {
	for _, m := range matches {
		if (!m.Received || r.answers) && !m.dns {
			m.Probes = r.probes(m.Peer, node)
		}
		all = append(all, m.Match)
	}
	return all
}

// maxProbes is the maximum number of addresses of each family to try for a rule.
const maxProbes = 4

// Addresses reserved for documentation (RFC 5737, RFC 3849). A node with a default route forwards packets to them.
var unusedAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// probes returns addresses to which the node should forward packets. The addresses are in the network, unless the
// network is the zero value. Packets to the node's own addresses are not forwarded.
func (r resolver) probes(network netip.Prefix, node string) []netip.Addr {
	if network.IsSingleIP() {
		return []netip.Addr{network.Addr()}
	}
	var own, v4, v6 []netip.Addr
	add := func(a netip.Addr) {
		list := &v4
		if a.Is6() {
			list = &v6
		}
		if api.IsHostAddress(a) && (!network.IsValid() || network.Contains(a)) && len(*list) < maxProbes &&
			!slices.Contains(own, a) && !slices.Contains(*list, a) {
			*list = append(*list, a)
		}
	}
	for _, n := range r.nodes {
		if n.Name == node {
			own = nodeAddresses(n)
		}
	}
	for _, n := range r.nodes {
		if n.Name != node && len(v4)+len(v6) < maxProbes/2 {
			for _, a := range nodeAddresses(n) {
				add(a)
			}
		}
	}
	if network.IsValid() {
		add(network.Addr().Next())
		add(last(network).Prev())
	}
	for _, a := range unusedAddresses {
		add(a)
	}
	return append(v4, v6...)
}

// nodeAddresses returns the addresses of a node, and the first addresses of its pod networks, which usually belong to
// its bridge.
func nodeAddresses(n corev1.Node) (all []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			all = append(all, address)
		}
	}
	for _, cidr := range n.Spec.PodCIDRs {
		if network, err := netip.ParsePrefix(cidr); err == nil {
			all = append(all, network.Masked().Addr().Next())
		}
	}
	return all
}

// last returns the last address of a network.
func last(network netip.Prefix) netip.Addr {
	bytes := network.Addr().AsSlice()
	for i := range bytes {
		if bits := network.Bits() - i*8; bits < 8 {
			bytes[i] |= 0xff >> max(bits, 0)
		}
	}
	address, _ := netip.AddrFromSlice(bytes)
	return address
}

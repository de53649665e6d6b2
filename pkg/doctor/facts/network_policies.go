package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// This file evaluates NetworkPolicies for one connection. Policies are evaluated after Services have been resolved:
// they apply to the labels of the pods at both ends, and to the port on which the destination pod listens. If any
// policy selects a pod for a direction, only connections that some policy allows are permitted in that direction.
// Policies are additive.

// Answer is a three-valued truth value. Answers are ordered, so the conjunction of two answers is the lesser one.
type Answer int

// The possible answers. The answer is Perhaps if it depends on labels that are missing from the snapshot, or on ipBlock
// rules, which network plugins apply to pods in different ways.
const (
	Never Answer = iota
	Perhaps
	Surely
)

func certain(so bool) Answer {
	if so {
		return Surely
	}
	return Never
}

// End is a pod at one end of a connection, with the fields that NetworkPolicies match.
type End struct {
	Namespace string
	Labels    labels.Set
	// Partial is true if the pod may have more labels and ports than these, because the known ones come from a
	// Service's selector.
	Partial   bool
	Addresses []netip.Addr
	Ports     []corev1.ContainerPort
	// Outside is true for a server outside the cluster. If the server has no address, its address is an unknown public
	// one.
	Outside bool
}

// Connection is a connection from a pod to another pod, or to a server outside the cluster. The port is the
// destination's.
type Connection struct {
	From, To End
	Protocol corev1.Protocol
	Port     int32
}

// policyRule is an ingress or egress rule.
type policyRule struct {
	Peers []networkingv1.NetworkPolicyPeer
	Ports []networkingv1.NetworkPolicyPort
}

// PolicyRules returns a policy's rules for one direction.
func PolicyRules(p *networkingv1.NetworkPolicy, d networkingv1.PolicyType) []policyRule {
	var all []policyRule
	if d == networkingv1.PolicyTypeEgress {
		for _, r := range p.Spec.Egress {
			all = append(all, policyRule{r.To, r.Ports})
		}
		return all
	}
	for _, r := range p.Spec.Ingress {
		all = append(all, policyRule{r.From, r.Ports})
	}
	return all
}

// EndOf returns a pod as one end of a connection.
func EndOf(pod *corev1.Pod) End {
	e := End{Namespace: pod.Namespace, Labels: pod.Labels}
	for c := range Containers(pod) {
		e.Ports = append(e.Ports, c.Ports...)
	}
	if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
		e.Addresses = append(e.Addresses, a)
	}
	return e
}

// policySelects reports whether a policy applies to the pod at an end, in one direction.
func policySelects(p *networkingv1.NetworkPolicy, d networkingv1.PolicyType, e End) Answer {
	types := p.Spec.PolicyTypes
	if len(types) == 0 { // the API server's default
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	if p.Namespace != e.Namespace || !slices.Contains(types, d) {
		return Never
	}
	return Picks(&p.Spec.PodSelector, e.Labels, e.Partial)
}

// Picks reports whether a selector matches the labels. If partial is true, there may be more labels than the known
// ones.
func Picks(s *metav1.LabelSelector, known labels.Set, partial bool) Answer {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return Perhaps
	}
	if selector.Matches(known) {
		return Surely
	}
	requirements, _ := selector.Requirements()
	if partial && !slices.ContainsFunc(
		requirements, func(r labels.Requirement) bool { return known.Has(r.Key()) && !r.Matches(known) },
	) {
		return Perhaps
	}
	return Never
}

// Admits reports whether policies let a connection leave its source pod (egress) or enter its destination pod
// (ingress). It also returns the policies that select that pod.
func (f *Facts) Admits(d networkingv1.PolicyType, c Connection) (let Answer, by []*networkingv1.NetworkPolicy) {
	self, other := c.From, c.To
	if d == networkingv1.PolicyTypeIngress {
		self, other = c.To, c.From
	}
	for i := range f.NetworkPolicies {
		p := &f.NetworkPolicies[i]
		selected := policySelects(p, d, self)
		if selected == Never {
			continue
		}
		if selected == Surely {
			by = append(by, p)
		}
		for _, r := range PolicyRules(p, d) {
			let = max(let, min(selected, f.peersAllow(r.Peers, p.Namespace, other), PortsAllow(r.Ports, c)))
		}
	}
	if len(by) == 0 {
		return Surely, nil
	}
	return let, by
}

// peersAllow reports whether a rule's peers include the other end.
func (f *Facts) peersAllow(peers []networkingv1.NetworkPolicyPeer, namespace string, other End) Answer {
	let := certain(len(peers) == 0)
	for i := range peers {
		let = max(let, f.PeerIs(&peers[i], namespace, other))
	}
	return let
}

// PeerIs reports whether a peer of a rule matches the other end.
func (f *Facts) PeerIs(peer *networkingv1.NetworkPolicyPeer, namespace string, other End) Answer {
	switch {
	case other.Outside:
		return blockHasOutside(peer.IPBlock, other.Addresses)
	case peer.IPBlock != nil:
		return blockHas(peer.IPBlock.CIDR, other)
	}
	is := certain(other.Namespace == namespace)
	if peer.NamespaceSelector != nil {
		known, partial := f.NamespaceLabels(other.Namespace)
		is = Picks(peer.NamespaceSelector, known, partial)
	}
	if peer.PodSelector != nil {
		is = min(is, Picks(peer.PodSelector, other.Labels, other.Partial))
	}
	return is
}

// blockHas reports whether an ipBlock contains the other end. The answer is at most Perhaps, because some network
// plugins do not apply ipBlocks to pods, or match them against the Service's address.
func blockHas(cidr string, other End) Answer {
	block, err := netip.ParsePrefix(cidr)
	if err != nil || len(other.Addresses) == 0 || slices.ContainsFunc(other.Addresses, block.Contains) {
		return Perhaps
	}
	return Never
}

// blockHasOutside reports whether an ipBlock contains a server outside the cluster. Selectors match only pods.
func blockHasOutside(b *networkingv1.IPBlock, addresses []netip.Addr) Answer {
	if b == nil {
		return Never
	}
	has := func(cidr string) bool {
		block, err := netip.ParsePrefix(cidr)
		return err == nil && (block.Bits() == 0 || slices.ContainsFunc(addresses, block.Contains))
	}
	switch {
	case has(b.CIDR):
		return certain(!slices.ContainsFunc(b.Except, has))
	case len(addresses) == 0:
		return Perhaps
	}
	return Never
}

// NamespaceLabels returns a namespace's known labels, and whether there may be more.
func (f *Facts) NamespaceLabels(name string) (known labels.Set, partial bool) {
	for i := range f.Namespaces {
		if f.Namespaces[i].Name == name {
			return f.Namespaces[i].Labels, false
		}
	}
	return labels.Set{corev1.LabelMetadataName: name}, true
}

// SelectsNoNamespace reports whether the selector matches no namespace in the cluster.
func (f *Facts) SelectsNoNamespace(s *metav1.LabelSelector) bool {
	return len(f.Namespaces) > 0 &&
		!slices.ContainsFunc(f.Namespaces, func(n corev1.Namespace) bool { return Picks(s, n.Labels, false) != Never })
}

// PortsAllow reports whether a rule's ports include the connection's port.
func PortsAllow(ports []networkingv1.NetworkPolicyPort, c Connection) Answer {
	let := certain(len(ports) == 0)
	for _, p := range ports {
		let = max(let, PortIs(p, c))
	}
	return let
}

// PortIs reports whether a port in a rule matches the connection's port.
func PortIs(p networkingv1.NetworkPolicyPort, c Connection) Answer {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch {
	case protocol != c.Protocol:
		return Never
	case p.Port == nil:
		return Surely
	case p.Port.Type == intstr.Int:
		last := p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return certain(p.Port.IntVal <= c.Port && c.Port <= last)
	}
	if slices.ContainsFunc(c.To.Ports, func(of corev1.ContainerPort) bool {
		return of.Name == p.Port.StrVal && of.ContainerPort == c.Port &&
			(of.Protocol == c.Protocol || of.Protocol == "" && c.Protocol == corev1.ProtocolTCP)
	}) {
		return Surely
	}
	if len(c.To.Ports) == 0 {
		return Perhaps
	}
	return Never
}

// PortsText formats ports as a list: "TCP 53, UDP 53".
func PortsText(ports []networkingv1.NetworkPolicyPort) string {
	var all []string
	for _, p := range ports {
		text := string(corev1.ProtocolTCP)
		if p.Protocol != nil {
			text = string(*p.Protocol)
		}
		if p.Port != nil {
			text += " " + p.Port.String()
		}
		if p.EndPort != nil {
			text += fmt.Sprintf("-%d", *p.EndPort)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// PeerText describes a rule's peer.
func PeerText(peer networkingv1.NetworkPolicyPeer) string {
	if peer.IPBlock != nil {
		return "addresses " + peer.IPBlock.CIDR
	}
	text := "pods"
	if peer.PodSelector != nil {
		text += " " + orAll(metav1.FormatLabelSelector(peer.PodSelector))
	}
	if peer.NamespaceSelector != nil {
		return text + " in namespaces " + orAll(metav1.FormatLabelSelector(peer.NamespaceSelector))
	}
	return text + " in its own namespace"
}

func orAll(selector string) string {
	if selector == "" || selector == "<none>" {
		return "(all)"
	}
	return selector
}

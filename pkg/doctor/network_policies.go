package doctor

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

// What NetworkPolicies say of one connection. They see the pods at both ends, after a Service was resolved: the pods'
// labels, and the port that the pods listen on. The first policy that selects a pod denies the rest, for each direction
// apart; what others allow adds up.

// answer reports whether something is so. Answers are ordered: of two that both must hold the lesser counts.
type answer int

// The answers. It is perhaps what cannot be told: labels that are not in the snapshot, and rules by addresses, which
// network plugins apply to pods in different ways.
const (
	never answer = iota
	perhaps
	surely
)

func certain(so bool) answer {
	if so {
		return surely
	}
	return never
}

// end is one end of a connection: a pod, as policies see it.
type end struct {
	namespace string
	labels    labels.Set
	// partial says that it may have more labels and ports than these: they are those that a Service selects.
	partial   bool
	addresses []netip.Addr
	ports     []corev1.ContainerPort
}

// connection is what a pod wants; the port is that of the pod at the other end.
type connection struct {
	from, to end
	protocol corev1.Protocol
	port     int32
}

// policyRule is a rule of either direction.
type policyRule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func policyRules(p *networkingv1.NetworkPolicy, d networkingv1.PolicyType) []policyRule {
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

// endOf returns a pod as policies see it.
func endOf(pod *corev1.Pod) end {
	e := end{namespace: pod.Namespace, labels: pod.Labels}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		e.ports = append(e.ports, c.Ports...)
	}
	if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
		e.addresses = append(e.addresses, a)
	}
	return e
}

// policySelects reports whether a policy selects the pod at an end, for a direction.
func policySelects(p *networkingv1.NetworkPolicy, d networkingv1.PolicyType, e end) answer {
	types := p.Spec.PolicyTypes
	if len(types) == 0 { // as the API server fills it in
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	if p.Namespace != e.namespace || !slices.Contains(types, d) {
		return never
	}
	return picks(&p.Spec.PodSelector, e.labels, e.partial)
}

// selects reports whether a selector selects labels, of which there may be more than are known.
func picks(s *metav1.LabelSelector, known labels.Set, partial bool) answer {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return perhaps
	}
	if selector.Matches(known) {
		return surely
	}
	requirements, _ := selector.Requirements()
	if partial && !slices.ContainsFunc(
		requirements, func(r labels.Requirement) bool { return known.Has(r.Key()) && !r.Matches(known) },
	) {
		return perhaps
	}
	return never
}

// admits reports whether policies let a connection out of its pod, or into the other; by are the policies that select
// that pod.
func (f *Facts) admits(d networkingv1.PolicyType, c connection) (let answer, by []*networkingv1.NetworkPolicy) {
	self, other := c.from, c.to
	if d == networkingv1.PolicyTypeIngress {
		self, other = c.to, c.from
	}
	for i := range f.NetworkPolicies {
		p := &f.NetworkPolicies[i]
		selected := policySelects(p, d, self)
		if selected == never {
			continue
		}
		if selected == surely {
			by = append(by, p)
		}
		for _, r := range policyRules(p, d) {
			let = max(let, min(selected, f.peersAllow(r.peers, p.Namespace, other), portsAllow(r.ports, c)))
		}
	}
	if len(by) == 0 {
		return surely, nil
	}
	return let, by
}

// peersAllow reports whether a rule is about the other end.
func (f *Facts) peersAllow(peers []networkingv1.NetworkPolicyPeer, namespace string, other end) answer {
	let := certain(len(peers) == 0)
	for i := range peers {
		let = max(let, f.peerIs(&peers[i], namespace, other))
	}
	return let
}

func (f *Facts) peerIs(peer *networkingv1.NetworkPolicyPeer, namespace string, other end) answer {
	if peer.IPBlock != nil {
		return blockHas(peer.IPBlock.CIDR, other)
	}
	is := certain(other.namespace == namespace)
	if peer.NamespaceSelector != nil {
		known, partial := f.namespaceLabels(other.namespace)
		is = picks(peer.NamespaceSelector, known, partial)
	}
	if peer.PodSelector != nil {
		is = min(is, picks(peer.PodSelector, other.labels, other.partial))
	}
	return is
}

// blockHas is at most perhaps: some network plugins do not apply blocks of addresses to pods, or see the address of the
// Service.
func blockHas(cidr string, other end) answer {
	block, err := netip.ParsePrefix(cidr)
	if err != nil || len(other.addresses) == 0 || slices.ContainsFunc(other.addresses, block.Contains) {
		return perhaps
	}
	return never
}

// namespaceLabels returns those that are known, and whether there may be more.
func (f *Facts) namespaceLabels(name string) (known labels.Set, partial bool) {
	for i := range f.Namespaces {
		if f.Namespaces[i].Name == name {
			return f.Namespaces[i].Labels, false
		}
	}
	return labels.Set{corev1.LabelMetadataName: name}, true
}

// selectsNoNamespace reports whether no namespace of the cluster has the labels.
func (f *Facts) selectsNoNamespace(s *metav1.LabelSelector) bool {
	return len(f.Namespaces) > 0 &&
		!slices.ContainsFunc(f.Namespaces, func(n corev1.Namespace) bool { return picks(s, n.Labels, false) != never })
}

func portsAllow(ports []networkingv1.NetworkPolicyPort, c connection) answer {
	let := certain(len(ports) == 0)
	for _, p := range ports {
		let = max(let, portIs(p, c))
	}
	return let
}

func portIs(p networkingv1.NetworkPolicyPort, c connection) answer {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch {
	case protocol != c.protocol:
		return never
	case p.Port == nil:
		return surely
	case p.Port.Type == intstr.Int:
		last := p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return certain(p.Port.IntVal <= c.port && c.port <= last)
	}
	if slices.ContainsFunc(c.to.ports, func(of corev1.ContainerPort) bool {
		return of.Name == p.Port.StrVal && of.ContainerPort == c.port &&
			(of.Protocol == c.protocol || of.Protocol == "" && c.protocol == corev1.ProtocolTCP)
	}) {
		return surely
	}
	if len(c.to.ports) == 0 {
		return perhaps
	}
	return never
}

// portsText prints ports as people say them: "TCP 53, UDP 53".
func portsText(ports []networkingv1.NetworkPolicyPort) string {
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

// peerText prints whom a rule is about.
func peerText(peer networkingv1.NetworkPolicyPeer) string {
	if peer.IPBlock != nil {
		return "addresses " + peer.IPBlock.CIDR
	}
	text := "pods"
	if peer.PodSelector != nil {
		text += " " + orAll(metav1.FormatLabelSelector(peer.PodSelector))
	}
	if peer.NamespaceSelector != nil {
		return text + " of namespaces " + orAll(metav1.FormatLabelSelector(peer.NamespaceSelector))
	}
	return text + " of its own namespace"
}

func orAll(selector string) string {
	if selector == "" || selector == "<none>" {
		return "(all)"
	}
	return selector
}

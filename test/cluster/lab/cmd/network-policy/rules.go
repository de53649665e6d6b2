package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	chain   = "NETWORK-POLICY"
	allowed = "0x20000/0x20000" // a mark that neither kube-proxy (0x4000, 0x8000) nor the plugin uses
)

// rules returns what iptables-restore reads: our chain, and one per pod of this node and direction that a policy
// selects.
func (s *state) rules() string {
	var chains, body []string
	add := func(format string, a ...any) { body = append(body, fmt.Sprintf(format, a...)) }
	// Policies decide on connections, not on packets.
	add("-A %s -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN", chain)
	var locals []string
	for _, pod := range s.running() {
		if pod.Spec.NodeName != s.node {
			continue
		}
		ip := pod.Status.PodIP
		locals = append(locals, ip)
		for _, d := range []direction{egress, ingress} {
			policies := s.selecting(pod, d)
			if len(policies) == 0 {
				continue
			}
			name := fmt.Sprintf("NP-%s-%s", d.short, strings.ReplaceAll(ip, ".", "-"))
			chains = append(chains, name)
			add("-A %s %s %s -j %s", chain, d.own, ip, name)
			add("-A %s -j MARK --set-xmark 0x0/0x20000", name)
			for _, p := range policies {
				for _, line := range s.policy(p, pod, d) {
					add("-A %s %s", name, line)
				}
			}
			add("-A %s -m mark --mark %s -j RETURN", name, allowed)
			add("-A %s -j DROP", name)
		}
	}
	// The address of a pod is known a moment after the pod: until then, where there are policies, it may do nothing.
	// (Its first packet is sent again a second later.)
	if len(s.policies) > 0 {
		chains = append(chains, "NP-UNKNOWN-S", "NP-UNKNOWN-D")
		add("-A %s -s %s -j NP-UNKNOWN-S", chain, s.cidr)
		add("-A %s -d %s -j NP-UNKNOWN-D", chain, s.cidr)
		for _, ip := range append(locals, strings.TrimSuffix(s.cidr, "0/24")+"1") { // .1 is the bridge
			add("-A NP-UNKNOWN-S -s %s -j RETURN", ip)
			add("-A NP-UNKNOWN-D -d %s -j RETURN", ip)
		}
		add("-A NP-UNKNOWN-S -j DROP")
		add("-A NP-UNKNOWN-D -j DROP")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*filter\n:%s - [0:0]\n", chain)
	for _, c := range chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	fmt.Fprintf(&b, "%s\nCOMMIT\n", strings.Join(body, "\n"))
	return b.String()
}

// direction is one of the two that policies speak of, seen from the pod that they select.
type direction struct {
	short     string
	kind      networkingv1.PolicyType
	own, peer string // iptables' flags for the pod's own address and the other one
}

var (
	egress  = direction{"OUT", networkingv1.PolicyTypeEgress, "-s", "-d"}
	ingress = direction{"IN", networkingv1.PolicyTypeIngress, "-d", "-s"}
)

// running returns the pods that have an address of their own, by address.
func (s *state) running() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range s.pods {
		if p.Status.PodIP != "" && !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded &&
			p.Status.Phase != corev1.PodFailed {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })
	return out
}

// selecting returns the policies that hold for a pod in a direction, by name.
func (s *state) selecting(pod *corev1.Pod, d direction) []*networkingv1.NetworkPolicy {
	var out []*networkingv1.NetworkPolicy
	for _, p := range s.policies {
		if p.Namespace == pod.Namespace && matches(&p.Spec.PodSelector, pod.Labels) && has(p, d.kind) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *networkingv1.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// has reports whether a policy is about a direction. The API server fills policyTypes in.
func has(p *networkingv1.NetworkPolicy, kind networkingv1.PolicyType) bool {
	return slices.Contains(p.Spec.PolicyTypes, kind)
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(set))
}

// policy returns the rules, without their chain, that mark what a policy allows.
func (s *state) policy(p *networkingv1.NetworkPolicy, pod *corev1.Pod, d direction) []string {
	var out []string
	one := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		for _, to := range s.peers(p.Namespace, peers, d) {
			named := to.pod // egress: a port's name is the other pod's
			if d.short == "IN" {
				named = pod
			}
			for _, port := range portMatches(ports, named) {
				out = append(out, strings.Join(strings.Fields(to.match+" "+port+" -j MARK --set-xmark "+allowed), " "))
			}
		}
	}
	if d.short == "OUT" {
		for _, r := range p.Spec.Egress {
			one(r.To, r.Ports)
		}
		return out
	}
	for _, r := range p.Spec.Ingress {
		one(r.From, r.Ports)
	}
	return out
}

// peer is one other side: how iptables matches it, and the pod, where it is one.
type peer struct {
	match string
	pod   *corev1.Pod
}

func (s *state) peers(namespace string, list []networkingv1.NetworkPolicyPeer, d direction) []peer {
	if len(list) == 0 {
		return []peer{{}}
	}
	var out []peer
	for _, p := range list {
		if p.IPBlock != nil {
			out = append(out, peer{match: block(p.IPBlock, d)})
			continue
		}
		for _, pod := range s.running() {
			if s.isPeer(namespace, &p, pod) {
				out = append(out, peer{d.peer + " " + pod.Status.PodIP, pod})
			}
		}
	}
	return out
}

func (s *state) isPeer(namespace string, p *networkingv1.NetworkPolicyPeer, pod *corev1.Pod) bool {
	if p.NamespaceSelector == nil {
		if pod.Namespace != namespace {
			return false
		}
	} else if ns := s.namespaces[pod.Namespace]; ns == nil || !matches(p.NamespaceSelector, ns.Labels) {
		return false
	}
	return p.PodSelector == nil || matches(p.PodSelector, pod.Labels)
}

// block returns an ipBlock. Its exceptions are one more match each, all in the same rule: iprange is the only one that
// may be given again.
func block(b *networkingv1.IPBlock, d direction) string {
	match := d.peer + " " + b.CIDR
	side := map[string]string{"-s": "--src-range", "-d": "--dst-range"}[d.peer]
	for _, e := range b.Except {
		if first, last, ok := bounds(e); ok {
			match += fmt.Sprintf(" -m iprange ! %s %s-%s", side, first, last)
		}
	}
	return match
}

// portMatches are iptables' matches for ports; no ports means all. A name that the pod does not have matches nothing.
func portMatches(ports []networkingv1.NetworkPolicyPort, pod *corev1.Pod) []string {
	if len(ports) == 0 {
		return []string{""}
	}
	var out []string
	for _, p := range ports {
		proto := "tcp"
		if p.Protocol != nil {
			proto = strings.ToLower(string(*p.Protocol))
		}
		switch {
		case p.Port == nil:
			out = append(out, "-p "+proto)
		case p.Port.Type == intstr.String:
			if n := portNumber(pod, p.Port.StrVal); n != 0 {
				out = append(out, fmt.Sprintf("-p %s --dport %d", proto, n))
			}
		case p.EndPort != nil:
			out = append(out, fmt.Sprintf("-p %s --dport %d:%d", proto, p.Port.IntVal, *p.EndPort))
		default:
			out = append(out, fmt.Sprintf("-p %s --dport %d", proto, p.Port.IntVal))
		}
	}
	return out
}

func portNumber(pod *corev1.Pod, name string) int32 {
	if pod == nil {
		return 0
	}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	return 0
}

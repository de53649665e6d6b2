package network

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// missKind classifies why a rule does not allow a connection.
type missKind int

// The kinds are ordered from the closest match to no match.
const (
	missPorts     missKind = iota // selects the right pods, but other ports
	missNamespace                 // has a namespaceSelector that selects no namespace
	missPeers                     // selects other pods
	missAll                       // no rule is close
)

// miss is the rule that comes closest to allowing a denied connection.
type miss struct {
	kind     missKind
	policy   *networkingv1.NetworkPolicy
	rule, at int
}

// nearest returns the rule that comes closest to allowing a connection. Rules for unrelated destinations do not count.
func nearest(f *facts.Facts, d networkingv1.PolicyType, w wanted, by []*networkingv1.NetworkPolicy) miss {
	best := miss{kind: missAll, policy: by[0]}
	if w.To.Outside {
		return best
	}
	other := w.To
	if d == networkingv1.PolicyTypeIngress {
		other = w.From
	}
	better := func(m miss) {
		if m.kind < best.kind {
			best = m
		}
	}
	for _, p := range by {
		for i, r := range facts.PolicyRules(p, d) {
			ports := facts.PortsAllow(r.Ports, w.Connection)
			for j, peer := range r.Peers {
				switch is := f.PeerIs(&peer, p.Namespace, other); {
				case peer.IPBlock != nil:
				case is != facts.Never && ports == facts.Never && isSpecific(peer) && w.dns == onlyDNS(r.Ports):
					better(miss{missPorts, p, i, j})
				case is != facts.Never || ports == facts.Never:
				case d == networkingv1.PolicyTypeIngress:
					better(miss{missPeers, p, i, j})
				case peer.NamespaceSelector != nil && f.SelectsNoNamespace(peer.NamespaceSelector) &&
					meant(f, peer, w, r.Ports):
					better(miss{missNamespace, p, i, j})
				case w.dns && onlyDNS(r.Ports):
					better(miss{missPeers, p, i, j})
				}
			}
		}
	}
	return best
}

// isSpecific reports whether the peer has a selector that is not empty.
func isSpecific(peer networkingv1.NetworkPolicyPeer) bool {
	chooses := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 }
	return chooses(peer.PodSelector) || chooses(peer.NamespaceSelector)
}

// onlyDNS reports whether all ports are DNS ports.
func onlyDNS(ports []networkingv1.NetworkPolicyPort) bool {
	return len(ports) > 0 && !slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		return p.Port == nil || !slices.Contains([]string{"53", "5353", "dns", "dns-tcp"}, p.Port.String())
	})
}

// meant reports whether a peer that selects nothing was intended for the destination, judging by its pod selector, the
// namespace's name, or the DNS ports.
func meant(f *facts.Facts, peer networkingv1.NetworkPolicyPeer, w wanted, ports []networkingv1.NetworkPolicyPort) bool {
	if peer.PodSelector != nil && len(peer.PodSelector.MatchLabels) > 0 {
		return facts.Picks(peer.PodSelector, w.To.Labels, false) == facts.Surely
	}
	return w.dns && onlyDNS(ports) ||
		strings.Contains(metav1.FormatLabelSelector(peer.NamespaceSelector), w.To.Namespace)
}

// denied returns the finding about a denied connection: the responsible rule, the error in the rule, and the fix.
func denied(
	f *facts.Facts, u facts.Unreached, w wanted, d networkingv1.PolicyType, by []*networkingv1.NetworkPolicy,
) finding.Finding {
	m := nearest(f, d, w, by)
	object := finding.Object{Kind: "NetworkPolicy", Namespace: m.policy.Namespace, Name: m.policy.Name}
	listens := fmt.Sprintf("%s %d", w.Protocol, w.Connection.Port)
	side, peers, selected := "egress", "to", "the pod, for egress"
	if d == networkingv1.PolicyTypeIngress {
		side, peers, selected = "ingress", "from", "the pods of "+w.name+", for ingress"
	}
	rule := fmt.Sprintf("/spec/%s/%d", side, m.rule)
	field := fmt.Sprintf(".spec.%s[%d]", side, m.rule)
	issue := finding.Finding{
		Object: facts.PodObject(u.Pod), Subject: object, Nodes: facts.OnNode(u.Pod), Confidence: finding.Likely,
		Evidence: []finding.Evidence{u.Said},
	}
	switch rules := facts.PolicyRules(m.policy, d); m.kind {
	case missPorts:
		issue.Title, issue.Fix.Text = wrongPorts(f, w, d, m.policy.Name, rules[m.rule].Ports, listens)
		issue.Evidence = append(issue.Evidence,
			finding.FieldEvidence(object, field+".ports", "%s", facts.PortsText(rules[m.rule].Ports)))
		issue.Fix.Commands = []string{w.rightPort(m.policy, rule, rules[m.rule].Ports)}
	case missNamespace:
		peer := rules[m.rule].Peers[m.at]
		issue.Title = fmt.Sprintf(
			"the NetworkPolicy %s is meant to let the pod reach %s, but its namespaceSelector selects no namespace",
			m.policy.Name, w.name,
		)
		issue.Evidence = append(issue.Evidence, finding.FieldEvidence(object,
			fmt.Sprintf("%s.to[%d].namespaceSelector", field, m.at), "%s",
			metav1.FormatLabelSelector(peer.NamespaceSelector)), labelsEvidence(f, w.To.Namespace))
		issue.Fix = finding.Fix{
			Text: "Select the namespace by a label that it has: every namespace has the label kubernetes.io/metadata.name. Kubernetes accepts selectors that select nothing.",
			Commands: []string{patchPolicy(m.policy, "replace", fmt.Sprintf("%s/to/%d/namespaceSelector", rule, m.at),
				byName(w.To.Namespace))},
		}
	case missPeers:
		var who []string
		for _, p := range rules[m.rule].Peers {
			who = append(who, facts.PeerText(p))
		}
		issue.Evidence = append(issue.Evidence,
			finding.FieldEvidence(object, field+"."+peers, "%s", strings.Join(who, "; ")))
		if d == networkingv1.PolicyTypeIngress {
			issue.Title = fmt.Sprintf("the NetworkPolicy %s allows ingress to %s from other clients, but not from "+
				"the pods in namespace %s",
				m.policy.Name, w.name, u.Pod.Namespace)
			issue.Evidence = append(issue.Evidence, labelsEvidence(f, u.Pod.Namespace))
			issue.Fix = finding.Fix{
				Text:     "Allow ingress from the pod's namespace: both ends must allow a connection.",
				Commands: []string{patchPolicy(m.policy, "add", rule+"/from/-", w.client())},
			}
			break
		}
		issue.Title = fmt.Sprintf("the NetworkPolicy %s allows DNS traffic, but not to the DNS server's pods",
			m.policy.Name)
		issue.Fix = finding.Fix{
			Text:     "Allow the DNS server's pods.",
			Commands: []string{patchPolicy(m.policy, "add", rule+"/to/-", w.server())},
		}
	case missAll:
		issue.Title = "NetworkPolicies restrict the pod's egress and do not let it reach " + w.name
		if d == networkingv1.PolicyTypeIngress {
			issue.Title = fmt.Sprintf(
				"NetworkPolicies restrict ingress to the pods of %s and do not allow it from the pods in namespace %s",
				w.name, u.Pod.Namespace,
			)
		}
		issue.Fix = finding.Fix{
			Text: "Save a policy that allows the connection as policy.yaml, and apply it: policies are " +
				"additive.", Values: w.allow(d, by[0]),
			Commands: []string{"kubectl apply -f policy.yaml"},
		}
		if w.To.Outside {
			issue.Fix.Text += " Policies cannot contain host names, so this one allows the port for all public " +
				"addresses; narrow it to the server's, or add the policy to the chart that installs the others."
		}
	}
	if !w.dns && !w.To.Outside {
		issue.Evidence = append(issue.Evidence, finding.Evidence{
			Source: w.name + " .spec.ports", Text: fmt.Sprintf("port %d forwards to %s on pods with "+
				"%s", w.port, listens,
				metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: w.selector})),
		})
	}
	issue.Evidence = append(issue.Evidence, finding.Evidence{
		Source: "NetworkPolicies of Namespace " + m.policy.Namespace + " that select " + selected,
		Text:   policyNames(by),
	})
	return issue
}

// wrongPorts returns the title and fix for a rule that lists the wrong ports.
func wrongPorts(f *facts.Facts,
	w wanted, d networkingv1.PolicyType, policy string, ports []networkingv1.NetworkPolicyPort, listens string,
) (title, fix string) {
	ofService := slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		return p.Port != nil && p.Port.Type == intstr.Int && p.Port.IntVal == w.port
	})
	allowed := facts.PortsText(ports)
	switch {
	case w.dns && !strings.Contains(allowed, string(corev1.ProtocolUDP)):
		return fmt.Sprintf("the NetworkPolicy %s allows DNS only over %s, but lookups use UDP", policy, allowed),
			"Allow DNS over both protocols: UDP for lookups, and TCP for long responses."
	case ofService && w.port != w.Connection.Port:
		return fmt.Sprintf("the NetworkPolicy %s allows %s, the port of the Service, but the Service's pods listen on %s", policy,
				allowed, listens),
			"Allow the pods' port: policies apply to the pods' address and port, not the Service's."
	case d == networkingv1.PolicyTypeIngress:
		return fmt.Sprintf("the NetworkPolicy %s lets the pod reach %s on %s, but the destination pods listen on %s", policy,
			w.name, allowed, listens), "Allow the port that the pods listen on."
	}
	return fmt.Sprintf("the NetworkPolicy %s lets the pod reach %s on %s, but the destination pods listen on %s", policy, w.name,
		allowed, listens), "Allow the port that the pods listen on."
}

// rightPort returns a command that corrects a rule: it replaces the rule's only port if the protocol matches, and adds
// a port otherwise.
func (w wanted) rightPort(p *networkingv1.NetworkPolicy, rule string, ports []networkingv1.NetworkPolicyPort) string {
	if len(ports) == 1 && !w.dns && ports[0].Port != nil &&
		facts.PortIs(networkingv1.NetworkPolicyPort{Protocol: ports[0].Protocol}, w.Connection) == facts.Surely {
		return patchPolicy(p, "replace", rule+"/ports/0/port", w.Connection.Port)
	}
	return patchPolicy(p, "add", rule+"/ports/-", map[string]any{"protocol": w.Protocol, "port": w.Connection.Port})
}

// client returns a policy peer that matches the pod's namespace.
func (w wanted) client() map[string]any {
	return map[string]any{"namespaceSelector": byName(w.From.Namespace)}
}

func (w wanted) server() map[string]any {
	if w.To.Outside {
		return map[string]any{"ipBlock": map[string]any{
			"cidr": "0.0.0.0/0", "except": []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"},
		}}
	}
	return map[string]any{
		"namespaceSelector": byName(w.To.Namespace), "podSelector": map[string]any{"matchLabels": w.selector},
	}
}

func byName(namespace string) map[string]any {
	return map[string]any{"matchLabels": map[string]string{corev1.LabelMetadataName: namespace}}
}

// allow returns a policy that allows the denied connection. An egress policy selects the same pods as the denying
// policy; an ingress policy selects the Service's pods.
func (w wanted) allow(d networkingv1.PolicyType, denying *networkingv1.NetworkPolicy) string {
	ports := []map[string]any{{"protocol": w.Protocol, "port": w.Connection.Port}}
	if w.dns {
		ports = append(ports, map[string]any{"protocol": corev1.ProtocolTCP, "port": w.Connection.Port})
	}
	spec := map[string]any{"podSelector": denying.Spec.PodSelector, "policyTypes": []networkingv1.PolicyType{d}}
	name := "allow-dns"
	switch {
	case d == networkingv1.PolicyTypeIngress:
		name = "allow-from-" + w.From.Namespace
		spec["podSelector"] = map[string]any{"matchLabels": w.selector}
		spec["ingress"] = []any{map[string]any{"from": []any{w.client()}, "ports": ports}}
	default:
		if !w.dns {
			name = "allow-" + w.name[strings.LastIndexByte(w.name, '/')+1:]
		}
		if w.To.Outside { // the denying policy may select all pods
			for _, key := range []string{"app.kubernetes.io/name", "app", "job-name"} {
				if value := w.From.Labels[key]; value != "" {
					spec["podSelector"] = map[string]any{"matchLabels": map[string]string{key: value}}
					break
				}
			}
		}
		spec["egress"] = []any{map[string]any{"to": []any{w.server()}, "ports": ports}}
	}
	policy, err := yaml.Marshal(map[string]any{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": map[string]string{"name": name, "namespace": denying.Namespace}, "spec": spec,
	})
	if err != nil {
		return ""
	}
	return string(policy)
}

func patchPolicy(p *networkingv1.NetworkPolicy, op, path string, value any) string {
	patch, err := json.Marshal([]any{map[string]any{"op": op, "path": path, "value": value}})
	if err != nil {
		return shell.LeftOut
	}
	return shell.Command("kubectl -n %s patch networkpolicy %s --type json -p %s", p.Namespace, p.Name, string(patch))
}

// labelsEvidence quotes a namespace's labels.
func labelsEvidence(f *facts.Facts, namespace string) finding.Evidence {
	known, _ := f.NamespaceLabels(namespace)
	return finding.FieldEvidence(
		finding.Object{Kind: "Namespace", Name: namespace}, ".metadata.labels", "%s", words.OrNone(known.String()),
	)
}

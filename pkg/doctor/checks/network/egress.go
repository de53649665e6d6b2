package network

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// blocked is a packet dropped by a firewall, as logged by netfilter's LOG target.
type blocked struct {
	ufw      bool
	in, out  string
	src, dst netip.Addr
	proto    string
	port     string // destination port
}

// parseBlocked parses a line from the kernel log. It returns false if the line does not report a dropped packet.
func parseBlocked(text string) (blocked, bool) {
	var b blocked
	prefix, _, found := strings.Cut(text, "IN=")
	if !found || len(text) > 4<<10 {
		return b, false
	}
	b.ufw = strings.Contains(prefix, "[UFW BLOCK]")
	if !b.ufw && !words.ContainsAny(strings.ToUpper(prefix), []string{"BLOCK", "DROP", "REJECT", "DENY", "DENIED"}) {
		return b, false
	}
	for word := range strings.FieldsSeq(text[len(prefix):]) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "IN":
			b.in = interfaceName(value)
		case "OUT":
			b.out = interfaceName(value)
		case "SRC":
			b.src, _ = netip.ParseAddr(value)
		case "DST":
			b.dst, _ = netip.ParseAddr(value)
		case "PROTO":
			b.proto = value
		case "DPT":
			if _, err := strconv.ParseUint(value, 10, 16); err == nil {
				b.port = value
			}
		}
	}
	return b, b.src.IsValid() && b.dst.IsValid()
}

// ofPods reports whether the interface belongs to a pod network.
func ofPods(name string) bool {
	return regexp.MustCompile(
		`^(lxc|cali|veth|cni|cilium|flannel|cbr|tunl|vxlan|eni[0-9a-f]|azv|gke[0-9a-f]|weave|antrea|ovn|kube-bridge)`,
	).MatchString(name)
}

// egress reports whether the packet was sent by a pod on the node, or by the node itself to a port for DNS, a registry,
// a proxy, or the API server.
func (b blocked) egress() bool {
	if b.dst.IsMulticast() || b.dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	return ofPods(b.in) ||
		b.own() && slices.Contains([]string{"53", "80", "443", "3128", "5000", "6443", "8080"}, b.port)
}

// own reports whether the node itself sent the packet.
func (b blocked) own() bool { return b.in == "" && b.out != "" }

// interfaceName returns name if it is safe to use in a command, and an empty string otherwise. Any privileged process
// can write arbitrary names to the kernel log.
func interfaceName(name string) string {
	if regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,14}$`).MatchString(name) {
		return name
	}
	return ""
}

// pattern returns a firewall rule's pattern that matches all interfaces of the same kind, such as lxc+ for lxc1a2b.
func pattern(name string) string {
	kind := regexp.MustCompile(`^(lxc|cali|veth|eni|azv|gke)`).FindString(name)
	if kind == "" {
		return name
	}
	return kind + "+"
}

func checkEgress(f *facts.Facts, r *engine.Result) {
	r.EachHost(f, func(n *facts.Node, host *api.Diagnosis) {
		if why := host.Probe.Unread["kernelLog"]; why != "" {
			r.Unknown(n.Object(), "kernel log: %s", why)
			return
		}
		var lines []api.KernelRecord
		var last blocked
		for _, record := range host.KernelLog {
			b, ok := parseBlocked(record.Text)
			if !ok || !b.egress() {
				continue
			}
			lines, last = append(lines, record), b
		}
		// Firewalls rate-limit their log lines, so even old lines count if pods are failing because of the network.
		suffering := len(lines) > 0 && failsOnNetwork(f, n)
		old := len(lines) > 0 && !lines[len(lines)-1].Time.IsZero() && f.Now.Sub(lines[len(lines)-1].Time) > time.Hour
		if len(lines) == 0 || old && !suffering {
			r.Pass(n.Object())
			return
		}
		title := "the node's firewall drops packets from its pods"
		if last.own() {
			title = "the node's firewall drops packets from the node itself"
		}
		issue := finding.Finding{
			Title:  title,
			Object: n.Object(), Severity: finding.Warning, Confidence: finding.Likely, Fix: firewallFix(n, last),
		}
		for _, record := range lines[max(0, len(lines)-3):] {
			issue.Evidence = append(issue.Evidence, finding.Evidence{
				Source: fmt.Sprintf("nodes/%s/kernel.log sequence %d", n.Name, record.Sequence), Time: record.Time,
				Text: words.Clip(record.Text),
			})
		}
		if suffering {
			issue.Severity = finding.Error
			if !old {
				issue.Confidence = finding.Certain
			}
		}
		r.Add(issue)
	})
}

// failsOnNetwork reports whether pods on the node are failing with a network error.
func failsOnNetwork(f *facts.Facts, n *facts.Node) bool {
	return slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		troubles := f.Troubles(pod)
		if len(troubles) == 0 {
			return false
		}
		if _, dns := f.Said(
			pod, troubles,
			append(dnsTexts(), "i/o timeout", "Connection timed out", "connection timed out",
				"Network is unreachable")...,
		); dns {
			return true
		}
		return slices.ContainsFunc(failedPulls(f, pod),
			func(p pulling) bool { return p.failure.id == "img.pull-network" || p.failure.id == "net.dns" })
	})
}

func firewallFix(n *facts.Node, b blocked) finding.Fix {
	if !b.ufw && b.own() {
		return finding.Fix{
			Text: "A firewall on the node denies packets that the node sends: find the rule that logged these lines, and allow DNS and the registries' port.",
			Commands: []string{
				shell.OnHost(n.Name, "sudo iptables -S OUTPUT"),
				shell.OnHost(n.Name, "sudo nft list ruleset"),
			},
		}
	}
	if !b.ufw {
		fix := finding.Fix{
			Text: "Find the rule that logged these lines. If it is the network plugin's, a network policy drops the " +
				"packets. Otherwise, allow packets from the node's pods (firewalld: add the pods' network to the " +
				"trusted zone).",
			Commands: []string{
				shell.OnHost(n.Name, "sudo iptables -S FORWARD"), shell.OnHost(n.Name, "sudo firewall-cmd --state"),
			},
		}
		if network := podNetwork(n, b.src); network != "" {
			fix.Commands = append(fix.Commands, shell.OnHost(n.Name,
				"sudo firewall-cmd --permanent --zone=trusted --add-source=%s && sudo firewall-cmd --reload", network))
		}
		return fix
	}
	if b.own() {
		return finding.Fix{
			Text: "UFW denies packets that the node sends: allow DNS and the registries' port on this node and all other nodes that run UFW.",
			Commands: []string{
				shell.OnHost(n.Name, "sudo ufw allow out on %s to any port %s proto %s", b.out, b.port,
					cmp.Or(protocol(b.proto), "tcp")), shell.OnHost(n.Name, "sudo ufw reload"),
			},
		}
	}
	fix := finding.Fix{
		Text: "UFW denies routed packets by default, and packets from pods are routed: allow both directions on this node and all other nodes that run UFW.",
	}
	if b.out != "" {
		fix.Commands = append(fix.Commands,
			shell.OnHost(n.Name, "sudo ufw route allow in on %s out on %s", pattern(b.in), b.out),
			shell.OnHost(n.Name, "sudo ufw route allow in on %s out on %s", b.out, pattern(b.in)))
	} else {
		fix.Commands = append(fix.Commands, shell.OnHost(n.Name, "sudo ufw allow in on %s", pattern(b.in)))
	}
	if network := podNetwork(n, b.src); network != "" {
		fix.Commands = append(fix.Commands, shell.OnHost(n.Name, "sudo ufw route allow from %s", network),
			shell.OnHost(n.Name, "sudo ufw route allow to %s", network))
	}
	fix.Commands = append(fix.Commands, shell.OnHost(n.Name, "sudo ufw reload"))
	return fix
}

// protocol returns a protocol in the form that UFW accepts, or an empty string if UFW does not support it.
func protocol(name string) string {
	if lower := strings.ToLower(name); lower == "tcp" || lower == "udp" {
		return lower
	}
	return ""
}

// podNetwork returns the network that contains a pod's address: the node's pod CIDR, or else a private address block.
func podNetwork(n *facts.Node, src netip.Addr) string {
	for _, cidr := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
		if p, err := netip.ParsePrefix(cidr); err == nil && p.Contains(src) {
			return p.Masked().String()
		}
	}
	for _, cidr := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"} {
		if p, err := netip.ParsePrefix(cidr); err == nil && p.Contains(src) {
			return cidr
		}
	}
	return ""
}

// Package network checks for network problems of pods and image pulls.
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

// Checks returns the checks of the network layer.
func Checks() []engine.Check {
	pulls := func(id, title, why string, sources ...string) engine.Check {
		return engine.Check{
			ID: id, Layer: finding.LayerNetwork, Title: title, Needs: []engine.Need{engine.NeedAPI}, Why: why,
			Sources: sources,
			Reads:   "waiting reason and message of containers, events Failed and FailedCreatePodSandBox",
			Explains: []string{
				"op.init-chain", "op.operand-failing", "op.clusterpolicy", "dp.not-running", "dp.capacity-zero",
				"wl.pod-failing", "rt.sandbox-failed", "obs.*", "gfd.*", "nfd.*",
			},
			Doc: "https://kubernetes.io/docs/concepts/containers/images/",
			Run: func(f *facts.Facts, r *engine.Result) { checkPulls(f, r, id) },
		}
	}
	return []engine.Check{
		pulls(
			"img.pull-network",
			"an image cannot be pulled because its registry cannot be reached",
			"The container runtime's message distinguishes timeouts, TLS errors, refused connections and proxy errors; net.dns reports names that do not resolve. The node pulls images, not the pod: the node's firewall, proxy and DNS matter, NetworkPolicies do not.",
			"gpu-operator#199",
			"gpu-operator#332",
			"NFD#1229",
			"seed 001, scenario 7",
		),
		pulls(
			"img.pull-auth",
			"a registry refuses to serve an image",
			"The registry responds but rejects the pull: 401, 403, insufficient_scope, a missing pull secret or a rate limit.",
			"nim-deploy#42",
			"nvidia-docker#535",
		),
		pulls("img.not-found", "an image does not exist in its registry",
			"The registry reports that the repository or tag does not exist, or the image reference is invalid.",
			"gpu-operator#170", "gpu-operator#690"),
		{
			ID: "net.dns", Symptom: engine.Precise,
			Layer: finding.LayerNetwork,
			Title: "names do not resolve inside GPU pods, or on the node that pulls their images",
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Reads: "logs and container messages of failing GPU pods and GPU components; reasons why images cannot be pulled",
			Why: "\"Temporary failure in name resolution\" and similar messages mean that no DNS server responded. If a name does not exist, only the program in the pod reports this, and not the check. " +
				"The node pulls images and uses its own DNS server: \"lookup NAME on SERVER\" is about that server, and no registry was contacted.",
			Explains: []string{
				"wl.pod-failing", "wl.probe-failing", "op.init-chain", "op.operand-failing", "dp.not-running",
				"drv.headers", "drv.build-fail", "img.pull-network",
				"op.clusterpolicy", "dp.capacity-zero", "rt.sandbox-failed", "obs.*", "gfd.*", "nfd.*",
			},
			Sources: []string{"seed 002"},
			Run:     checkDNS,
		},
		{
			ID:    "net.egress-blocked",
			Layer: finding.LayerNetwork,
			Title: "the node's firewall drops packets from its pods",
			Needs: []engine.Need{engine.NeedNode},
			Reads: "the node's kernel log: lines of UFW, firewalld and iptables with IN=, OUT=, SRC=, DST=",
			Why:   "UFW denies routed packets by default, and packets from pods are routed. Packets from outside to the node itself are background noise and are ignored. The finding is an error if pods of the node have network errors at the same time, and a warning otherwise.",
			Explains: []string{
				"img.pull-network", "net.dns", "wl.pod-failing", "wl.probe-failing", "op.init-chain",
				"op.operand-failing", "op.clusterpolicy", "dp.not-running",
				"drv.headers", "drv.build-fail", "nfd.labels", "node.not-ready",
			},
			Sources: []string{"seed 002"},
			Run:     checkEgress,
		},
		networkPolicyCheck(),
	}
}

// pullFailure is the reason why an image cannot be pulled.
type pullFailure struct{ id, kind string }

// classifyPull returns the reason in the container runtime's message, and false if the message contains no known
// reason.
func classifyPull(message string) (pullFailure, bool) {
	lower := strings.ToLower(message)
	// Check this before "connection refused", which can also be an error of the DNS server.
	if kind := nameFailure(lower); kind != "" && !strings.Contains(lower, "proxyconnect") {
		return pullFailure{"net.dns", kind}, true
	}
	for _, known := range []struct {
		texts []string
		is    pullFailure
	}{
		// wl.exec-format reports a wrong platform, although containerd adds "not found" to the message.
		{[]string{"no match for platform", "no matching manifest for"}, pullFailure{"", "platform"}},
		{
			[]string{"invalidimagename", "invalid reference format", "couldn't parse image"},
			pullFailure{"img.not-found", "name"},
		},
		{
			[]string{"toomanyrequests", "429 too many requests", "pull rate limit"},
			pullFailure{"img.pull-auth", "limit"},
		},
		{[]string{"proxyconnect", "proxy error", "407 proxy authentication"}, pullFailure{"img.pull-network", "proxy"}},
		{
			[]string{
				"x509:", "certificate", "tls handshake timeout", "tls: ", "server gave http response to https client",
			},
			pullFailure{"img.pull-network", "tls"},
		},
		{[]string{
			"i/o timeout", "client.timeout exceeded", "context deadline exceeded", "timeout awaiting",
			"connection timed out", "no route to host", "network is unreachable",
		}, pullFailure{"img.pull-network", "timeout"}},
		{[]string{
			"connection refused", "connection reset", "unexpected eof", "broken pipe", "502 bad gateway",
			"503 service unavailable", "504 gateway",
		}, pullFailure{"img.pull-network", "refused"}},
		{[]string{
			"401 unauthorized", "403 forbidden", "insufficient_scope", "authorization failed", "unauthorized:",
			"unauthorized", "no basic auth credentials", "pull access denied", "denied:", "authentication required",
		}, pullFailure{"img.pull-auth", "auth"}},
		{
			[]string{"manifest unknown", "not found", "name unknown", "repository does not exist", "does not exist"},
			pullFailure{"img.not-found", "tag"},
		},
	} {
		if words.ContainsAny(lower, known.texts) {
			return known.is, true
		}
	}
	return pullFailure{}, false
}

// lookup matches the beginning of errors of Go's resolver: "lookup nvcr.io on 10.0.0.2:53: ...", or "lookup nvcr.io:
// ..." without a server.
var lookup = regexp.MustCompile(`\blookup (\S+?)(?: on \S+)?: (\S.*)`)

// nameFailure returns "no-name" if a lowercase message reports that a DNS name does not exist, "dns" if the name could
// not be resolved for another reason, and an empty string otherwise.
func nameFailure(lower string) string {
	said := lower
	if m := lookup.FindStringSubmatch(lower); m != nil {
		said = "lookup: " + m[2]
	}
	switch {
	case strings.Contains(said, "no such host"):
		return "no-name"
	case strings.HasPrefix(said, "lookup: "),
		words.ContainsAny(
			said, []string{"server misbehaving", "temporary failure in name resolution", "name resolution"},
		):
		return "dns"
	}
	return ""
}

// pulling is an image that a pod cannot pull.
type pulling struct {
	image    string
	failure  pullFailure
	known    bool
	evidence finding.Evidence
}

// failedPulls returns the images that a pod currently cannot pull.
func failedPulls(f *facts.Facts, pod *corev1.Pod) []pulling {
	if pod.DeletionTimestamp != nil || facts.Ended(pod) {
		return nil
	}
	var all []pulling
	for c := range facts.Statuses(pod) {
		w := c.State.Waiting
		if w == nil || !slices.Contains([]string{
			"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable", "ErrImageInspect",
		}, w.Reason) {
			continue
		}
		p := pulling{image: cmp.Or(facts.ImageOf(pod, c.Name), c.Image)}
		p.evidence = finding.Evidence{
			Source: facts.PodObject(pod).String() + ", container " + c.Name + " .state.waiting",
			Text:   words.Cut(w.Reason + ": " + w.Message),
		}
		p.failure, p.known = classifyPull(w.Reason + " " + w.Message)
		named := cmp.Or(quotedWord(w.Message), p.image) // the pod template may have changed since
		for _, e := range f.EventsOfPod(pod) {
			about := strings.Contains(e.Message, p.image) || strings.Contains(e.Message, named)
			if p.known || e.Reason != "Failed" || !strings.Contains(e.Message, "pull image") || !about {
				continue
			}
			if p.failure, p.known = classifyPull(e.Message); p.known {
				p.evidence = facts.Quote(e)
				p.evidence.Text = words.Cut(p.evidence.Text)
			}
		}
		all = append(all, p)
	}
	if len(all) > 0 || pod.Status.Phase != corev1.PodPending {
		return all
	}
	for _, e := range f.EventsOfPod(pod) { // check the pause image
		if e.Reason == "FailedCreatePodSandBox" && strings.Contains(e.Message, "sandbox image") &&
			strings.Contains(e.Message, "pull") {
			p := pulling{image: quotedWord(e.Message), evidence: facts.Quote(e)}
			p.evidence.Text = words.Cut(p.evidence.Text)
			p.failure, p.known = classifyPull(e.Message)
			return append(all, p)
		}
	}
	return all
}

// quotedWord returns the first string in double quotes.
func quotedWord(text string) string {
	_, rest, _ := strings.Cut(text, `"`)
	word, _, found := strings.Cut(rest, `"`)
	if !found || len(word) > 512 {
		return ""
	}
	return word
}

// registryOf returns the registry host of an image.
func registryOf(image string) string {
	host, _, found := strings.Cut(image, "/")
	if found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return host
	}
	return "docker.io"
}

func checkPulls(f *facts.Facts, r *engine.Result, id string) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		for _, p := range failedPulls(f, pod) {
			if !p.known && id == "img.pull-network" {
				why := "neither the pod's status nor an event shows why " + p.image + " cannot be pulled"
				if missing := f.Missing("api/events"); missing != "" {
					why += "; api/events: " + missing
				}
				r.Unknown(facts.PodObject(pod), "%s", why)
			}
			if p.failure.id != id {
				continue
			}
			severity := f.Concerns(pod)
			if severity == finding.Info && id != "img.pull-network" && id != "net.dns" {
				continue // the pod does not concern GPUs
			}
			title, fix := pullFix(pod, p)
			r.Add(finding.Finding{
				Title: title, Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: severity,
				Evidence: []finding.Evidence{p.evidence}, Fix: fix,
			})
		}
	}
}

func pullFix(pod *corev1.Pod, p pulling) (string, finding.Fix) {
	registry := registryOf(p.image)
	try := []string{shell.OnHost(pod.Spec.NodeName, "sudo crictl pull %s", p.image)}
	curl := []string{shell.OnHost(pod.Spec.NodeName, "curl -sSI %s", "https://"+registry+"/v2/")}
	host, _, _ := strings.Cut(registry, ":")
	if m := lookup.FindStringSubmatch(p.evidence.Text); m != nil {
		host = m[1] // may be the registry's token server or a mirror
	}
	resolve := []string{
		shell.OnHost(pod.Spec.NodeName, "cat /etc/resolv.conf"),
		shell.OnHost(pod.Spec.NodeName, "getent hosts %s", host),
	}
	switch p.failure.kind {
	case "dns":
		return "the node cannot resolve the name of the image's registry: the node's DNS server fails or does not respond",
			finding.Fix{
				Text: "Fix DNS on the nodes (/etc/resolv.conf, systemd-resolved): the message names the server that they query for " +
					host + ".",
				Commands: resolve,
			}
	case "no-name":
		return "the node cannot resolve the name of the image's registry: the node's DNS server does not know the name",
			finding.Fix{
				Text: "Correct the image's name, " + p.image + ", or add " + host +
					" to the DNS server of the nodes.",
				Commands: append(resolve, facts.EditCommands(pod)...),
			}
	case "tls":
		return "the TLS connection to the image's registry fails", finding.Fix{
			Text: "Trust the certificate authority of " + registry +
				" on the nodes (a TLS-inspecting proxy has its own), and check the nodes' clocks and MTU.",
			Commands: curl,
		}
	case "proxy":
		return "the proxy between the node and the image's registry fails", finding.Fix{
			Text:     "Correct HTTPS_PROXY and NO_PROXY in the container runtime's unit on the nodes, then restart the unit.",
			Commands: curl,
		}
	case "timeout":
		return "the node cannot reach the image's registry: the connection times out", finding.Fix{
			Text: "Allow the nodes to reach " + registry +
				" on TCP 443 (firewall rule, NAT gateway, security group, or HTTPS_PROXY in the container runtime's " +
				"unit), or use an internal mirror. The node pulls images, so NetworkPolicies do not matter.",
			Commands: curl,
		}
	case "refused":
		return "the image's registry refuses or drops the connection", finding.Fix{
			Text: "Check whether " + registry + " is up and reachable on its port from the nodes.", Commands: curl,
		}
	case "limit":
		return "the image's registry rejects the pull because of a rate limit", finding.Fix{
			Text:     "Log in with a pull secret, or pull through a mirror of " + registry + ".",
			Commands: secretCommands(pod, registry),
		}
	case "auth":
		return "the image's registry denies access: no valid credentials for the image", finding.Fix{
			Text: "Add a pull secret for " + registry +
				" to the pod's service account. Some registries report the same error if the image does not exist.",
			Commands: secretCommands(pod, registry),
		}
	case "name":
		return "the image reference is not valid", finding.Fix{
			Text: "Correct the image's name: " + p.image + ".", Commands: facts.EditCommands(pod),
		}
	}
	return "the image does not exist in its registry", finding.Fix{
		Text:     "Correct the name or tag of the image: " + p.image + ".",
		Commands: append(try, facts.EditCommands(pod)...),
	}
}

func secretCommands(pod *corev1.Pod, registry string) []string {
	user := "USER"
	if registry == "nvcr.io" {
		user = "$oauthtoken"
	}
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	return []string{
		shell.Command(
			"kubectl -n %s create secret docker-registry regcred --docker-server=%s --docker-username=%s --docker-password=TOKEN",
			pod.Namespace,
			registry,
			user,
		),
		shell.Command("kubectl -n %s patch serviceaccount %s -p '{\"imagePullSecrets\":[{\"name\":\"regcred\"}]}'",
			pod.Namespace, account),
	}
}

// dnsTexts returns the messages with which programs report failed DNS lookups.
func dnsTexts() []string {
	return []string{
		"Temporary failure in name resolution", "Temporary failure resolving", "server misbehaving",
		"Could not resolve host", "Name or service not known",
		"EAI_AGAIN", "no such host", "[Errno -3]",
	}
}

// onNetwork returns the failing GPU pods and components, which the network checks inspect.
func onNetwork(f *facts.Facts) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if len(f.Troubles(pod)) > 0 && f.Concerns(pod) == finding.Error {
			all = append(all, pod)
		}
	}
	return all
}

func checkDNS(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	checkPulls(f, r, "net.dns")
	policies := f.Missing("api/networkpolicies")
	for _, pod := range onNetwork(f) {
		if len(failedPulls(f, pod)) > 0 {
			continue // checkPulls reports the node's DNS problem
		}
		troubles := f.Troubles(pod)
		e, found := f.Said(pod, troubles, dnsTexts()...)
		if !found {
			if why := f.Unread(pod, troubles); why != "" {
				r.Unknown(facts.PodObject(pod), "%s", why)
			}
			continue
		}
		if policies != "" {
			r.Unknown(facts.PodObject(pod),
				"whether NetworkPolicies block the pod's DNS queries: api/networkpolicies: %s",
				policies)
		}
		r.Add(finding.Finding{
			Title: "names do not resolve inside the pod", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Confidence: finding.Likely, Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text: "Check whether CoreDNS is up and reachable from this node: its pods, NetworkPolicies with egress rules (UDP and TCP 53), and the node's firewall for routed packets.",
				Commands: []string{
					"kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide",
					shell.Command("kubectl -n %s get networkpolicies", pod.Namespace),
					shell.OnHost(pod.Spec.NodeName, "sudo ufw status verbose"),
					shell.OnHost(pod.Spec.NodeName, "sudo dmesg | grep 'UFW BLOCK' | tail"),
				},
			},
		})
	}
}

// blocked is a packet dropped by a firewall, as logged by netfilter's LOG target.
type blocked struct {
	ufw      bool
	in, out  string
	src, dst netip.Addr
	proto    string
	port     string // destination port
}

// parseBlocked parses a line of the kernel log, and returns false if the line does not report a dropped packet.
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

// egress reports whether a pod of the node sent the packet, or the node itself sent it to a port for DNS, a registry, a
// proxy, or the API server.
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

// pattern returns a firewall rule's pattern for all interfaces of the same kind, such as lxc+ for lxc1a2b.
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
		// Firewalls limit their log rate. Old lines therefore count if pods fail because of the network.
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
				Text: words.Cut(record.Text),
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

// failsOnNetwork reports whether pods of the node fail with a network error.
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
		return finding.Fix{
			Text: "Allow the packets of the node's pods in the firewall that logged these lines (firewalld: add the pods' interfaces to the trusted zone).",
			Commands: []string{
				shell.OnHost(n.Name,
					"sudo firewall-cmd --permanent --zone=trusted --add-interface=%s && sudo firewall-cmd --reload",
					b.in), shell.OnHost(n.Name, "sudo iptables -S FORWARD"),
			},
		}
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

// podNetwork returns the network of a pod's address: the node's pod CIDR, or else the private block that contains the
// address.
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

// Package network checks for network problems that affect pods and image pulls.
package network

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Checks returns the checks for the network layer.
func Checks() []engine.Check {
	pulls := func(id, title, why string, sources ...string) engine.Check {
		return engine.Check{
			ID: id, Layer: finding.LayerNetwork, Title: title, Needs: []engine.Need{engine.NeedAPI}, Why: why,
			Sources: sources,
			Reads:   "waiting reasons and messages of containers, and Failed and FailedCreatePodSandBox events",
			Explains: []string{
				"op.init-chain", "op.operand-failing", "op.clusterpolicy", "dp.not-running", "dp.capacity-zero",
				"wl.pod-failing", "rt.sandbox-failed", "obs.*", "gfd.*", "nfd.*",
			},
			ExplainsAs: map[string][]string{ofNode: {"node.not-ready", "rt.sandbox-failed", "dp.*", "wl.pod-failing"}},
			Symptom:    engine.Precise,
			Doc:        "https://kubernetes.io/docs/concepts/containers/images/",
			Run:        func(f *facts.Facts, r *engine.Result) { checkPulls(f, r, id) },
		}
	}
	return []engine.Check{
		pulls(
			"img.pull-network",
			"an image cannot be pulled because its registry cannot be reached",
			"The container runtime's message distinguishes timeouts, TLS errors, refused connections and proxy errors; net.dns reports names that do not resolve. The node pulls images, not the pod: the node's firewall, proxy and DNS matter, but NetworkPolicies do not.",
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
			Why: "\"Temporary failure in name resolution\" and similar messages mean that no DNS server responded. " +
				"If a name does not exist, the program in the pod reports this, but this check does not. \"Name or " +
				"service not known\" can mean either; wl.pod-failing reports a program that looks up the name of " +
				"another pod. The node pulls images and uses its own DNS server: \"lookup NAME on SERVER\" refers to " +
				"that server, and no registry was contacted.",
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
			Reads: "the node's kernel log: lines from UFW, firewalld and iptables with IN=, OUT=, SRC=, DST=",
			Why:   "UFW denies routed packets by default, and packets from pods are routed. Packets from outside to the node itself are background noise and are ignored. The finding is an error if pods on the node have network errors at the same time, and a warning otherwise.",
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
		answered := words.ContainsAny(e.Text, []string{"Name or service not known", "no such host"})
		if _, peer := f.NamesPeers(pod, nil); answered && peer != "" {
			continue // the workload layer compares the name with the pods
		}
		if policies != "" {
			r.Unknown(facts.PodObject(pod),
				"whether NetworkPolicies block the pod's DNS queries: api/networkpolicies: %s",
				policies)
		}
		issue := finding.Finding{
			Title: "names do not resolve inside the pod", Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
			Confidence: finding.Likely, Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text: "Find out whether CoreDNS is up and reachable from this node: check its pods, NetworkPolicies " +
					"with egress rules (UDP and TCP 53), and the node's firewall for routed packets.",
				Commands: []string{
					"kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide",
					shell.Command("kubectl -n %s get networkpolicies", pod.Namespace),
					shell.OnHost(pod.Spec.NodeName, "sudo ufw status verbose"),
					shell.OnHost(pod.Spec.NodeName, "sudo dmesg | grep 'UFW BLOCK' | tail"),
				},
			},
		}
		if policy := pod.Spec.DNSPolicy; policy == corev1.DNSDefault ||
			pod.Spec.HostNetwork && policy != corev1.DNSClusterFirstWithHostNet && policy != corev1.DNSNone {
			issue.Fix = finding.Fix{
				Text: "The pod uses its node's DNS servers, not CoreDNS: check that they respond on this node. They " +
					"do not know the names of Services: a pod that needs these names in the host's network requires " +
					"dnsPolicy: ClusterFirstWithHostNet.",
				Commands: []string{shell.OnHost(pod.Spec.NodeName, "cat /etc/resolv.conf")},
			}
		}
		if answered {
			issue.Title = "a name does not resolve inside the pod"
			issue.Fix.Text = "The message usually means that a DNS server responded: first check whether the name " +
				"that the program looked up is correct, and whether its Service or pod existed at that time. " +
				issue.Fix.Text
		}
		r.Add(issue)
	}
}

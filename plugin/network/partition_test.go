package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestValidate holds that bad input is refused before the cluster is asked, with what to do.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(p *partition)
		want   string
	}{
		"a pod":                {change: func(p *partition) { p.Nodes.Pod = "a" }},
		"a node":               {change: func(p *partition) { p.Nodes.Names = []string{"n"} }},
		"a workload":           {change: func(p *partition) { p.workload = "deployment/a" }},
		"a workload on a node": {change: func(p *partition) { p.workload, p.Nodes.Names = "sts/a", []string{"n"} }},

		"no target":        {func(*partition) {}, "no target"},
		"pod and workload": {func(p *partition) { p.Nodes.Pod, p.workload = "a", "job/b" }, "cannot be used together"},
		"pod and node":     {func(p *partition) { p.Nodes.Pod, p.Nodes.Names = "a", []string{"n"} }, "specify only one of"},
		"no type":          {func(p *partition) { p.workload = "a" }, "must be TYPE/NAME"},
		"an empty node":    {func(p *partition) { p.Nodes.Names = []string{" "} }, "is a variable unset?"},
		"protocol":         {func(p *partition) { p.Nodes.Pod, p.protocol = "a", "icmp" }, "supported values: tcp, udp"},
		"port":             {func(p *partition) { p.Nodes.Pod, p.port = "a", 65536 }, "must be 1 to 65535"},
		"no end":           {func(p *partition) { p.Nodes.Pod, p.TTL.TTL = "a", 0 }, "--ttl 0 is not supported"},
		"too short":        {func(p *partition) { p.Nodes.Pod, p.TTL.TTL = "a", time.Second }, "must be 10s"},
		"dns with a port": {
			func(p *partition) { p.Nodes.Pod, p.to, p.port = "a", []string{"dns"}, 80 }, "dns is port 53",
		},
		"a peer of --from": {
			func(p *partition) { p.Nodes.Pod, p.from = "a", []string{"x"} }, `invalid value "x" for --from`,
		},
		"an invalid format": {func(p *partition) { p.Nodes.Pod, p.Parallel = "a", -1 }, "--parallel"},
	} {
		p := newPartition()
		tc.change(p)
		err := p.validate()
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, wanted %q", name, err, tc.want)
		}
		if err == nil && (len(p.sent) != 1 || len(p.received) != 1 || p.peers() != "to any, from any") {
			t.Errorf("%s: without peers, the partition is %q", name, p.peers())
		}
	}
}

// TestSlowOf holds that latency, jitter and rate are read in their units, and that what the kernel cannot do is
// rejected.
func TestSlowOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		latency, jitter time.Duration
		rate, want      string
	}{
		{latency: 100 * time.Millisecond, want: "latency 100ms"},
		{latency: time.Second, jitter: time.Second, rate: "10M", want: "latency 1s ± 1s, rate 10M bit/s"},
		{rate: "8000", want: "rate 8k bit/s"},
		{want: "nothing to do: specify --latency, --rate, or both"},
		{jitter: time.Second, want: "nothing to do"},
		{latency: -1, want: "must be at most 1m0s"},
		{latency: 2 * time.Minute, want: "must be at most 1m0s"},
		{latency: 1, jitter: 2, want: "for --jitter: must be at most the latency"},
		{rate: "7k", want: "must be 8k to 100G bits per second"},
		{rate: "10Mbit", want: "must be 8k to 100G bits per second"},
		{rate: "-5M", want: "must be 8k to 100G bits per second"},
		{rate: "1E", want: "must be 8k to 100G bits per second"},
	} {
		s, err := slowOf(tc.latency, tc.jitter, tc.rate)
		got := fmt.Sprint(err)
		if err == nil {
			got = s.String()
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// TestSlowPeers holds that only packets that the pods receive become slow, by default those of any address, and that
// they are verified by addresses of other nodes.
func TestSlowPeers(t *testing.T) {
	t.Parallel()
	p := newPartition()
	p.Nodes.Pod, p.slow = "a", &api.Slow{Latency: time.Second}
	if err := p.validate(); err != nil || p.peers() != "from any" {
		t.Errorf("%q, %v", p.peers(), err)
	}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}},
	}}
	for _, answers := range []bool{true, false} {
		r := resolver{nodes: []corev1.Node{node}, answers: answers}
		all := r.forNode(r.expand(match{Match: api.Match{Received: true}}), "n1")
		if found := len(all) == 1 && slices.Contains(all[0].Probes, netip.MustParseAddr("10.0.0.2")); found != answers {
			t.Errorf("answers %v: %+v", answers, all)
		}
	}
}

// TestValidateLoss holds that a loss is a percentage below 100, and that it is said what to do instead.
func TestValidateLoss(t *testing.T) {
	t.Parallel()
	for percent, want := range map[int]string{
		1: "", 99: "", 0: "must be 1 to 99", -1: "must be 1 to 99", 101: "must be 1 to 99", 100: "network partition",
	} {
		p := newPartition()
		p.loss = percent
		err := p.validateLoss(true)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, wanted %q", percent, err, want)
		}
	}
	err := newPartition().validateLoss(false)
	if err == nil || !strings.Contains(err.Error(), "--percent is required") {
		t.Errorf("without --percent: %v", err)
	}
}

// TestPods holds that only pods with their own network outside of protected namespaces are cut off: others are refused
// by name, and omitted on nodes.
func TestPods(t *testing.T) {
	t.Parallel()
	host := runningPod("ml", "host", "b", "10.9.0.1")
	host.Spec.HostNetwork, host.Labels = true, nil
	ended := runningPod("ml", "ended", "a", "10.1.1.4")
	ended.Status.Phase = corev1.PodSucceeded
	dns := runningPod("kube-system", "dns", "b", "10.1.2.9")
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}}
	client := fake.NewClientset(
		runningPod("ml", "one", "a", "10.1.1.2"), runningPod("ml", "two", "b", "10.1.2.2"), ended, host, dns,
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train"},
			Spec:       appsv1.DeploymentSpec{Selector: selector},
		})
	cluster := &kube.Cluster{Client: client, Namespace: "ml"}
	for name, tc := range map[string]struct {
		workload string
		nodes    []string
		pod      *corev1.Pod
		want     string
		wrong    string
	}{
		"a pod":                     {pod: runningPod("ml", "one", "a", "10.1.1.2"), want: "ml/one"},
		"a pod in the host network": {pod: host, wrong: "pod ml/host uses the node's network"},
		"a pod of kube-system":      {pod: dns, wrong: "namespace kube-system is protected"},
		"a pod without an address":  {pod: runningPod("ml", "x", "a"), wrong: "has no address"},
		"a workload":                {workload: "deployment/train", nodes: []string{"a", "b"}, want: "ml/one ml/two"},
		"a workload on one node":    {workload: "deploy/train", nodes: []string{"b"}, want: "ml/two"},
		"a workload on another node": {
			workload: "deploy/train", nodes: []string{"c"}, wrong: `no running pods on node "c"`,
		},
		"no workload": {workload: "deploy/none", nodes: []string{"a"}, wrong: "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPartition()
			p.workload = tc.workload
			chosen, _, err := p.pods(t.Context(), cluster, tc.nodes, tc.pod, "gpu-fault")
			if (err != nil) != (tc.wrong != "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Fatalf("%v, wanted %q", err, tc.wrong)
			}
			if got := strings.Join(chosen.names(), " "); err == nil && got != tc.want {
				t.Errorf("%s, wanted %s", got, tc.want)
			}
		})
	}
	// The fake client ignores the field selector, so the node has all pods.
	chosen, omitted, err := newPartition().pods(t.Context(), cluster, []string{"b"}, nil, "gpu-fault")
	if got := strings.Join(chosen.names(), " "); err != nil || got != "ml/one ml/two" ||
		!strings.HasPrefix(omitted, "2 pods in the host network or in protected namespaces") {
		t.Errorf("%s, %q, %v", got, omitted, err)
	}
	if pods := chosen.request("b"); pods[0].UID != "uid-1" || pods[0].Addresses[0].String() != "10.1.1.2" {
		t.Errorf("%+v", pods)
	}
}

// TestAddressOfAService holds that an address of a Service is refused, because no packet has it where the rules are,
// and that a network with such addresses is accepted with a note.
func TestAddressOfAService(t *testing.T) {
	t.Parallel()
	cluster := &kube.Cluster{Client: fake.NewClientset(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "vllm"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}, ExternalIPs: []string{"192.0.2.7"}},
	})}
	for text, want := range map[string]string{
		"10.96.0.7": "is an address of Service ml/vllm", "192.0.2.7": "is an address of Service ml/vllm",
		"10.96.0.8": "", "10.97.0.0/16": "", "any": "", "dns": "",
		"10.96.0.0/16": "10.96.0.0/16 contains addresses of Services, such as 10.96.0.7 of ml/vllm",
	} {
		p, err := parsePeer(text)
		if err != nil {
			t.Fatal(err)
		}
		notes, err := checkServices(t.Context(), cluster, []peer{p})
		got := strings.Join(notes, "; ")
		if err != nil {
			got = err.Error()
		}
		refused := want != "" && !strings.Contains(text, "/")
		if (got != "") != (want != "") || !strings.Contains(got, want) || (err != nil) != refused {
			t.Errorf("%s: %q, wanted %q", text, got, want)
		}
	}
}

// TestFamilies holds that a peer with addresses of two families is cut off by those that the pods have, and that a peer
// without such an address is refused.
func TestFamilies(t *testing.T) {
	t.Parallel()
	pods := []api.PartitionedPod{{Name: "ml/a", UID: "u", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}}
	v4 := api.Match{Peer: netip.MustParsePrefix("10.2.0.2/32")}
	v6 := api.Match{Peer: netip.MustParsePrefix("fd00::2/128")}
	f, err := request(api.Partition{Pods: pods}, []api.Match{v4, v6})
	if err != nil || len(f.Partition.Matches) != 1 || f.Partition.Matches[0].Peer != v4.Peer {
		t.Errorf("%+v, %v", f.Partition, err)
	}
	_, err = request(api.Partition{Pods: pods}, []api.Match{v6})
	if err == nil || !strings.Contains(err.Error(), "same family as fd00::2/128") {
		t.Errorf("%v", err)
	}
}

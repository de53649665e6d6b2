package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestValidateVia holds that what Chaos Mesh cannot express is rejected, and that the default peers are those that it
// can.
func TestValidateVia(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(p *partition)
		peers  string
		want   string
	}{
		"a pod": {change: func(p *partition) { p.Nodes.Pod = "a" }, peers: "to any, from any"},
		"a workload": {
			change: func(p *partition) { p.workload, p.Nodes.Names = "sts/a", []string{"n"} },
			peers:  "to any, from any",
		},
		"loss": {change: func(p *partition) { p.Nodes.Pod, p.loss = "a", 5 }, peers: "to any"},
		"slow": {
			change: func(p *partition) { p.Nodes.Pod, p.slow = "a", &api.Slow{Latency: 1} },
			peers:  "to any",
		},
		"loss from a pod": {
			change: func(p *partition) { p.Nodes.Pod, p.loss, p.from = "a", 5, []string{"pod/b"} }, peers: "from pod/b",
		},

		"another value": {
			change: func(p *partition) { p.Nodes.Pod, p.via = "a", "x" },
			want:   "supported values: node, chaos-mesh",
		},
		"a node": {
			change: func(p *partition) { p.Nodes.Names = []string{"n"} },
			want:   "does not support all pods on a node",
		},
		"a selector": {
			change: func(p *partition) { p.Nodes.Selector = "x" },
			want:   "does not support all pods on a node",
		},
		"a port": {
			change: func(p *partition) { p.Nodes.Pod, p.port = "a", 80 },
			want:   "does not support --port",
		},
		"a protocol": {
			change: func(p *partition) { p.Nodes.Pod, p.protocol = "a", "tcp" },
			want:   "and --protocol",
		},
		"dns": {
			change: func(p *partition) { p.Nodes.Pod, p.to = "a", []string{"dns"} },
			want:   "the dns peer",
		},
		"IPv6": {
			change: func(p *partition) { p.Nodes.Pod, p.to = "a", []string{"fd00::/8"} },
			want:   "IPv4 only",
		},
		"loss from a network": {
			change: func(p *partition) { p.Nodes.Pod, p.loss, p.from = "a", 5, []string{"10.0.0.0/8"} },
			want:   "--from 10.0.0.0/8 for losing packets: Chaos Mesh acts on the sender",
		},
		"slow from any": {
			change: func(p *partition) { p.Nodes.Pod, p.slow, p.from = "a", &api.Slow{Latency: 1}, []string{"any"} },
			want:   "use --from pod/NAME, or --to",
		},
		"no end": {change: func(p *partition) { p.Nodes.Pod, p.TTL.TTL = "a", 0 }, want: "--ttl 0 is not supported"},
	} {
		p := newPartition()
		p.via = viaChaosMesh
		tc.change(p)
		err := p.validate()
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, wanted %q", name, err, tc.want)
		}
		if err == nil && (p.peers() != tc.peers || !p.NoPods) {
			t.Errorf("%s: peers %q, no pods %v", name, p.peers(), p.NoPods)
		}
	}
}

// TestChaosFault holds which peers a fault by Chaos Mesh has, and that it is rejected if a pod must not be cut off or
// has no address of IPv4.
func TestChaosFault(t *testing.T) {
	t.Parallel()
	host := runningPod("ml", "host", "n", "10.9.0.1")
	host.Spec.HostNetwork = true
	cluster := &kube.Cluster{Namespace: "ml", Client: fake.NewClientset(
		host, runningPod("ml", "b", "n", "10.1.0.2"), runningPod("other", "c", "n", "fd00::1", "10.1.0.3"),
		runningPod("ml", "v6", "n", "fd00::2"), runningPod("kube-system", "dns", "n", "10.1.0.4"),
	)}
	for name, tc := range map[string]struct {
		pod      string
		to, from []string
		want     string
	}{
		"any":           {to: []string{"any"}, want: "to {[] []}"},
		"pods":          {to: []string{"pod/b"}, from: []string{"pod/other/c"}, want: "to {[ml/b] []} from {[other/c] []}"},
		"a network":     {from: []string{"10.2.0.0/16", "10.1.2.3"}, want: "from {[] [10.2.0.0/16 10.1.2.3/32]}"},
		"itself":        {to: []string{"pod/a"}, want: "not found"},
		"the host":      {to: []string{"pod/host"}, want: "uses the node's network"},
		"IPv6":          {to: []string{"pod/v6"}, want: "pod ml/v6 has no IPv4 address"},
		"the system":    {to: []string{"pod/kube-system/dns"}, want: "namespace kube-system is protected"},
		"the same pod":  {pod: "b", to: []string{"pod/b"}, want: "peer pod/b is one of the selected pods"},
		"a pod of IPv6": {pod: "v6", to: []string{"any"}, want: "pod ml/v6 has no IPv4 address"},
	} {
		p := newPartition()
		p.via, p.to, p.from, p.Nodes.Pod, p.TTL.TTL = viaChaosMesh, tc.to, tc.from, "a", time.Minute
		if err := p.validate(); err != nil {
			t.Fatal(err)
		}
		chosen := podsByNode{"n": {*runningPod("ml", "a", "n", "10.1.0.9")}}
		if tc.pod == "b" {
			chosen["n"][0].Name = "b"
		}
		if tc.pod == "v6" {
			chosen["n"][0] = *runningPod("ml", "v6", "n", "fd00::2")
		}
		what, err := p.chaosFault(t.Context(), cluster, chosen, "gpu-fault")
		var parts []string
		if what.To != nil {
			parts = append(parts, fmt.Sprint("to ", *what.To))
		}
		if what.From != nil {
			parts = append(parts, fmt.Sprint("from ", *what.From))
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = err.Error()
		}
		wrong := err == nil && (got != tc.want || what.Namespace != "ml" || what.TTL != time.Minute)
		if wrong || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, wanted %q", name, got, tc.want)
		}
	}
}

// Package chaosmesh describes network faults as NetworkChaos objects for Chaos Mesh, and verifies them using the status
// that Chaos Mesh reports. The objects are created and deleted by pkg/faults/objects.
//
// The fields and their meaning are from Chaos Mesh's source (api/v1alpha1/networkchaos_types.go and
// controllers/chaosimpl/networkchaos). Chaos Mesh drops or delays packets in the network namespaces of pods. For a
// partition, it uses iptables, which affects packets in both directions. Otherwise, it uses tc, which affects only the
// packets that a pod sends. Packets that the selected pods receive are therefore delayed in the pods that send them.
package chaosmesh

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

var gvr = schema.GroupVersionResource{Group: "chaos-mesh.org", Version: "v1alpha1", Resource: "networkchaos"}

// Peers are the remote endpoints of the traffic in one direction. If neither pods nor networks are set, every address
// is a peer.
type Peers struct {
	Pods     []string // NAMESPACE/NAME
	Networks []string // IPv4 addresses and CIDRs
}

// Fault describes how packets of pods are affected.
type Fault struct {
	Namespace string   // namespace of the pods and the objects
	Pods      []string // NAMESPACE/NAME, all in Namespace
	// To contains the peers to which the pods send packets. From contains the peers from which the pods receive
	// packets. Each is nil if its direction is not affected.
	To, From *Peers
	Loss     int       // percentage of dropped packets; 0 means all packets
	Slow     *api.Slow // instead of dropping packets
	TTL      time.Duration
}

// Manifests returns the objects, one for each kind of peer. Their names begin with the prefix.
func (f Fault) Manifests(prefix string) (all []*unstructured.Unstructured, err error) {
	for _, peers := range f.peers() {
		o := &unstructured.Unstructured{}
		err := o.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion": "chaos-mesh.org/v1alpha1", "kind": "NetworkChaos",
"metadata": {"namespace": %q, "name": "%s-%d"},
"spec": {"mode": "all", "selector": {"pods": %s}, "duration": "%ds", %s, %s}}`,
			f.Namespace, prefix, len(all)+1, byNamespace(f.Pods), int(f.TTL.Seconds()), f.action(), peers))
		if err != nil {
			return nil, fmt.Errorf("describe the fault for Chaos Mesh: %w", err)
		}
		all = append(all, o)
	}
	return all, nil
}

// action returns the effect as JSON. Two objects with a latency and a rate for the same peers would not be combined:
// Chaos Mesh sends a packet through the queueing discipline of only one of them.
func (f Fault) action() string {
	switch {
	case f.Slow == nil && f.Loss == 0:
		return `"action": "partition"`
	case f.Slow == nil:
		return fmt.Sprintf(`"action": "loss", "loss": {"loss": "%d", "correlation": "0"}`, f.Loss)
	}
	delay := fmt.Sprintf(`"delay": {"latency": %q, "jitter": %q, "correlation": "0"}`,
		duration(f.Slow.Latency), duration(f.Slow.Jitter))
	bytes := f.Slow.Rate / 8
	switch { // the unit bps means bytes per second: older releases of Chaos Mesh do not support bits
	case bytes == 0:
		return `"action": "delay", ` + delay
	case f.Slow.Latency > 0:
		return fmt.Sprintf(`"action": "netem", %s, "rate": {"rate": "%dbps"}`, delay, bytes)
	}
	// A token bucket with bursts of 10 ms and a queue of 100 ms, both with room for at least a few packets.
	const some = 10 << 10
	return fmt.Sprintf(`"action": "bandwidth", "bandwidth": {"rate": "%dbps", "buffer": %d, "limit": %d}`,
		bytes, max(bytes/100, some), max(bytes/10, 4*some))
}

// duration formats a time in the format that Chaos Mesh accepts: one number with one unit.
func duration(d time.Duration) string {
	if d%time.Millisecond == 0 {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%dus", d.Microseconds())
}

// peers returns each direction with its peers as JSON. Pods and networks are in different objects, because Chaos Mesh
// would otherwise also cut the peers off from the networks.
func (f Fault) peers() (all []string) {
	add := func(direction string, p *Peers) {
		direction = fmt.Sprintf(`"direction": %q`, direction)
		switch {
		case p == nil:
			return
		case len(p.Pods)+len(p.Networks) == 0:
			all = append(all, direction)
		}
		if len(p.Pods) > 0 {
			all = append(all, direction+`, "target": {"mode": "all", "selector": {"pods": `+byNamespace(p.Pods)+`}}`)
		}
		if len(p.Networks) > 0 {
			all = append(all, direction+`, "externalTargets": ["`+strings.Join(p.Networks, `", "`)+`"]`)
		}
	}
	if f.To != nil && f.From != nil && slices.Equal(f.To.Pods, f.From.Pods) &&
		slices.Equal(f.To.Networks, f.From.Networks) {
		add("both", f.To)
		return all
	}
	add("to", f.To)
	add("from", f.From)
	return all
}

// byNamespace returns the names of pods by namespace, as JSON.
func byNamespace(pods []string) string {
	all := map[string][]string{}
	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		all[namespace] = append(all[namespace], name)
	}
	text, _ := json.Marshal(all) // encoding strings cannot fail
	return string(text)
}

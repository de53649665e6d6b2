package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/chaosmesh"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// partition holds the arguments and flags of a network command.
type partition struct {
	nodefault.Flags
	workload string
	to, from []string
	protocol string
	port     int
	via      string    // node or chaos-mesh
	loss     int       // percentage of packets to drop; 0 means all
	slow     *api.Slow // how to slow packets down instead of dropping them; nil otherwise

	sent, received []peer
	notes          []string // notes about peers that may not be what the user expects
}

func newPartition() *partition {
	p := &partition{Flags: nodefault.New(), via: viaNode}
	p.Nodes.Elsewhere = true
	return p
}

func newPartitionCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPartition()
	cmd := &cobra.Command{
		Use:   "partition (--pod POD | --workload TYPE/NAME | NODE... | -l SELECTOR) [--to PEER]... [--from PEER]...",
		Short: "Drop packets between pods and their peers, until the run is reverted or expires",
		Long: `Drop the packets between pods and their peers in the kernel of the pods' nodes, and verify the fault with a packet from a pod.

You can select one pod, the running pods of a workload, or all pods that are running on a node. Nodes and a workload together select the workload's
pods on these nodes. Pods in the host network and in protected namespaces, such as kube-system, cannot be selected.

A peer is one of these:

  IP or CIDR                       hosts outside of the cluster, nodes or networks
  pod/NAME, pod/NAMESPACE/NAME     the current addresses of a pod
  dns                              port 53 of any address, over UDP and TCP
  any                              any address

--to drops the packets that the pods send to the peer; --from drops the packets that they receive from it. By default, all packets to and from any
address are dropped. A connection needs both directions: with --to alone, requests from the peer arrive, but the responses are lost.

The rules match addresses. Packets to a Service carry the destination address of the pod behind it. A recreated pod has a different address, and is not
cut off. Packets between a pod and its own node are not dropped, so the kubelet's probes continue to work.

With --via chaos-mesh, an installed Chaos Mesh injects the fault instead: the command creates NetworkChaos objects and waits until their status
reports that the fault is injected in all pods. No privileged pod is started. Packets between a pod and its own node are also dropped. --port, --protocol, dns,
IPv6, and selecting all pods on a node are not supported.

The node's kernel ends the fault when the TTL expires or when the node reboots. If the node's network bypasses netfilter, as with CNI plugins
that use eBPF, the pod's test packet gets through; the command then removes the rules and exits with an error.`,
		Example: `  # Cut a pod off from everything for five minutes
  kubectl gpu-fault network partition --pod trainer-0 -n research --ttl 5m

  # Cut one rank of a job off from another
  kubectl gpu-fault network partition --pod trainer-0 --to pod/trainer-1 --from pod/trainer-1

  # Make DNS fail for all pods of a Deployment
  kubectl gpu-fault network partition --workload deployment/vllm -n infer --to dns

  # Use an installed Chaos Mesh to cut one rank of a job off from another
  kubectl gpu-fault network partition --pod trainer-0 --to pod/trainer-1 --via chaos-mesh

  # Cut the pods on a node off from an object store
  kubectl gpu-fault network partition gpu-1 --to 203.0.113.0/24 --protocol tcp --port 443`,
	}
	p.complete(cmd, connection, streams)
	return cmd
}

// complete adds what all network commands have in common.
func (p *partition) complete(cmd *cobra.Command, connection *kube.Connection, streams genericiooptions.IOStreams) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p.Nodes.Names = args
		if err := p.validate(); err != nil {
			return err
		}
		return p.run(cmd.Context(), connection, streams)
	}
	cmd.ValidArgsFunction = completion.Nodes(connection)
	p.AddFlags(cmd)
	flags := cmd.Flags()
	flags.Lookup("ttl").Usage = "Time after which the node's kernel ends the fault unless reverted earlier, 10s to 24h"
	flags.StringVar(&p.Nodes.Pod, "pod", "", "Pod to select, in the namespace set with -n")
	flags.StringVar(&p.workload, "workload", "", "Workload whose running pods to select, as TYPE/NAME, in the namespace set with -n")
	flags.StringSliceVar(&p.to, "to", nil, "Drop packets to this peer; may be specified up to 16 times")
	flags.StringSliceVar(&p.from, "from", nil, "Drop packets from this peer; may be specified up to 16 times")
	flags.IntVar(&p.port, "port", 0, "Destination port of the packets: with --to, a port of the peer; with --from, a port of the pods")
	flags.StringVar(&p.via, "via", p.via, "How to inject the fault: node (the node's kernel) or chaos-mesh (an installed Chaos Mesh)")
	flags.StringVar(&p.protocol, "protocol", "", "Protocol of the packets: tcp or udp (default: all, or both with --port)")
	_ = cmd.RegisterFlagCompletionFunc("pod", completion.Pods(connection))
	_ = cmd.RegisterFlagCompletionFunc("workload", cuda.CompleteWorkload(connection))
	for flag, words := range map[string][]string{
		"to": {peerAny, peerDNS, "pod/"}, "from": {peerAny, peerDNS, "pod/"},
		"protocol": {api.ProtocolTCP, api.ProtocolUDP}, "via": {viaNode, viaChaosMesh},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// validate checks everything that does not require a cluster.
func (p *partition) validate() (err error) {
	if err := p.validateTarget(); err != nil {
		return err
	}
	switch {
	case p.protocol != "" && p.protocol != api.ProtocolTCP && p.protocol != api.ProtocolUDP:
		return fmt.Errorf("invalid value %q for --protocol: supported values: tcp, udp", p.protocol)
	case p.port < 0 || p.port > 65535:
		return fmt.Errorf("invalid value %d for --port: must be 1 to 65535", p.port)
	case p.TTL.TTL == 0:
		return errors.New("--ttl 0 is not supported: the node's kernel and Chaos Mesh must know when to end the fault")
	}
	if p.sent, err = parsePeers("to", p.to); err != nil {
		return err
	}
	if p.received, err = parsePeers("from", p.from); err != nil {
		return err
	}
	if len(p.sent)+len(p.received) == 0 {
		p.sent, p.received = p.defaultPeers()
	}
	if p.port != 0 && slices.ContainsFunc(slices.Concat(p.sent, p.received), func(o peer) bool { return o.dns }) {
		return errors.New("--port and the dns peer cannot be used together: dns is port 53")
	}
	if err := p.validateVia(); err != nil {
		return err
	}
	p.NoPods = p.byChaosMesh()
	return p.Validate()
}

// defaultPeers returns the peers to use if none are specified. They stand for any address, in the directions that the
// fault supports.
func (p *partition) defaultPeers() (sent, received []peer) {
	all := []peer{{text: peerAny}}
	switch {
	case p.byChaosMesh() && (p.loss > 0 || p.slow != nil):
		return all, nil
	case p.slow != nil:
		return nil, all
	}
	return all, all
}

func (p *partition) validateTarget() error {
	given := len(p.Nodes.Names) > 0 || p.Nodes.Selector != ""
	kind, name, found := strings.Cut(p.workload, "/")
	switch {
	case !given && p.Nodes.Pod == "" && p.workload == "":
		return errors.New("no target: specify --pod POD, --workload TYPE/NAME, node names or -l SELECTOR")
	case p.Nodes.Pod != "" && p.workload != "":
		return errors.New("--pod and --workload cannot be used together")
	case p.workload != "" && (!found || kind == "" || name == ""):
		return fmt.Errorf("invalid value %q for --workload: must be TYPE/NAME, such as deployment/vllm", p.workload)
	}
	return nil
}

func (p *partition) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	var chosen podsByNode
	var omitted string
	var chaos []*unstructured.Unstructured
	what := nodefault.Fault{
		Name: "network", Summary: p.summary(), Result: p.result(), Question: p.question(),
		Describe: func(say func(string, ...any)) { p.describe(say, chosen.names(), omitted) },
		Needs:    needs(connection.LedgerNamespace),
		Changes: func(
			ctx context.Context, cluster *kube.Cluster, nodes []string, pod *corev1.Pod,
		) (changes []fault.Change, err error) {
			if chosen, omitted, err = p.pods(ctx, cluster, nodes, pod, connection.LedgerNamespace); err != nil {
				return nil, err
			}
			if p.byChaosMesh() {
				changes, chaos, err = p.chaos(ctx, connection, cluster, nodes, chosen)
				return changes, err
			}
			return p.changes(ctx, connection, cluster, nodes, chosen)
		},
	}
	if p.byChaosMesh() {
		connection.SwapFeature("network", viaChaosMesh) // the roles for Chaos Mesh do not require root on nodes
		what.Needs, what.Timed = chaosmesh.Permissions(), true
		what.DryRun = func() any { return map[string]any{"apiVersion": "v1", "kind": "List", "items": chaos} }
	}
	if p.workload != "" && len(p.Nodes.Names) == 0 && p.Nodes.Selector == "" {
		what.Nodes = func(ctx context.Context, cluster *kube.Cluster) (nodes []string, _ error) {
			pods, err := ofWorkload(ctx, cluster, p.workload)
			for _, pod := range pods {
				nodes = append(nodes, pod.Spec.NodeName)
			}
			slices.Sort(nodes)
			return slices.Compact(nodes), err
		}
	}
	return p.Run(ctx, connection, streams, what)
}

// changes returns the change to each node.
func (p *partition) changes(
	ctx context.Context, connection *kube.Connection, cluster *kube.Cluster, nodes []string, chosen podsByNode,
) (changes []fault.Change, _ error) {
	notes, err := checkServices(ctx, cluster, slices.Concat(p.sent, p.received))
	if err != nil {
		return nil, err
	}
	p.notes = notes
	all, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Explain(fmt.Errorf("list the nodes: %w", err))
	}
	r := resolver{cluster.Client, cluster.Namespace, p.protocol, p.port, all.Items, p.slow != nil}
	sent, err := r.matches(ctx, p.sent, false)
	if err != nil {
		return nil, err
	}
	received, err := r.matches(ctx, p.received, true)
	if err != nil {
		return nil, err
	}
	in := &firewall.Injection{
		Start: session.StartShortPod[firewall.Pod](cluster, connection.LedgerNamespace, p.Pods),
	}
	for _, node := range nodes {
		what, err := request(api.Partition{Pods: chosen.request(node), Loss: p.loss, Slow: p.slow},
			r.forNode(slices.Concat(sent, received), node))
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", node, err)
		}
		action := fmt.Sprintf("%s of %s: %s", p.effect(), count.Of(len(chosen[node]), "pod"), p.peers())
		changes = append(changes, in.Change(node, action, what))
	}
	return changes, nil
}

// request returns a valid request for a node. A pod peer may have addresses of two families. If no pod on the node has
// an address of a family, request omits the addresses of that family.
func request(what api.Partition, matches []api.Match) (api.Firewall, error) {
	var absent netip.Prefix
	for _, m := range matches {
		if m.Peer.IsValid() && !what.HasFamily(m.Peer.Addr().Is6()) {
			absent = m.Peer
			continue
		}
		what.Matches = append(what.Matches, m)
	}
	if len(what.Matches) == 0 {
		return api.Firewall{}, fmt.Errorf("no selected pod has an address of the same family as %s", absent)
	}
	f := api.Firewall{Table: api.PartitionTable("validate"), Partition: &what, TTL: time.Minute}
	return f, f.Validate()
}

// Permissions returns the permissions for network faults with any target, in addition to those for every fault.
func Permissions(ledgerNamespace string) []fault.Permission {
	return append(needs(ledgerNamespace), targetPermissions()...)
}

// targetPermissions returns the permissions to read targets and peers.
func targetPermissions() (all []fault.Permission) {
	for _, verb := range []string{"get", "list"} {
		all = append(all, fault.Permission{Verb: verb, Resource: "pods"})
	}
	for _, resource := range []string{"deployments", "statefulsets", "replicasets", "daemonsets"} {
		all = append(all, fault.Permission{Verb: "get", Group: "apps", Resource: resource})
	}
	return append(all, fault.Permission{Verb: "get", Group: "batch", Resource: "jobs"})
}

// needs returns the permissions that every network fault needs. Other permissions depend on the target and the peers,
// which are read before the preflight.
func needs(ledgerNamespace string) []fault.Permission {
	return append(fault.DebugPodPermissions(ledgerNamespace),
		// Required to reject the addresses of Services as peers.
		fault.Permission{Verb: "list", Resource: "services", Optional: true})
}

// subject describes the target.
func (p *partition) subject() string {
	switch {
	case p.Nodes.Pod != "":
		return "pod " + strings.TrimPrefix(strings.TrimPrefix(p.Nodes.Pod, "pods/"), "pod/")
	case p.workload != "":
		return "the pods of " + p.workload
	}
	return "all pods"
}

// peers describes the peers and ports, such as "to dns".
func (p *partition) peers() string {
	var parts []string
	for _, side := range []struct {
		word  string
		peers []peer
	}{{"to", p.sent}, {"from", p.received}} {
		var names []string
		for _, o := range side.peers {
			names = append(names, o.text)
		}
		if len(names) > 0 {
			parts = append(parts, side.word+" "+strings.Join(names, ", "))
		}
	}
	text := strings.Join(parts, ", ")
	if p.protocol != "" {
		text += ", " + p.protocol
	}
	if p.port != 0 {
		text += fmt.Sprintf(", port %d", p.port)
	}
	return text
}

// String describes the target and the peers, such as "pod a to dns".
func (p *partition) String() string { return p.subject() + " " + p.peers() }

// mostNamed is the maximum number of pods to name in the description.
const mostNamed = 5

// describe describes the planned change and how it ends.
func (p *partition) describe(say func(string, ...any), pods []string, omitted string) {
	named := strings.Join(pods[:min(len(pods), mostNamed)], ", ")
	if len(pods) > mostNamed {
		named += fmt.Sprintf(" and %s", count.Of(len(pods)-mostNamed, "other pod"))
	}
	if p.byChaosMesh() {
		p.describeChaos(say, named)
		return
	}
	if p.slow == nil {
		say("What: the kernel drops %s of %s: %s. Packets between a pod and its own node pass.", p.share(), named, p.peers())
	} else {
		say("What: the kernel slows down packets to %s: %s, %s. Packets between a pod and its own node pass.", named, p.peers(),
			p.slow)
	}
	if omitted != "" {
		say("Not affected: %s.", omitted)
	}
	for _, note := range p.notes {
		say("Note: %s.", note)
	}
	how := "adds a table to the node's nftables, and sends packets from a pod to verify the fault"
	if p.slow != nil {
		how = "adds queueing disciplines to the pods' links and a table to the node's nftables, and opens " +
			"a connection from a pod to verify the fault"
	}
	say("How: a privileged pod%s %s.", p.Pods.OtherImage(), how)
	say("Duration: %s. Undo: `kubectl gpu-fault revert RUN`. The kernel ends the fault when the TTL expires or when the node reboots.",
		p.TTL.String())
}

// describeChaos describes a fault injected through Chaos Mesh.
func (p *partition) describeChaos(say func(string, ...any), pods string) {
	say("What: Chaos Mesh injects a fault into %s: %s %s.", pods, p.effect(), p.peers())
	if slices.ContainsFunc(p.received, func(o peer) bool { return o.text == peerAny }) {
		say("Note: packets from the pods' own nodes are also dropped, so probes fail and the kubelet may restart " +
			"containers.")
	}
	say("How: with NetworkChaos objects, without a debug pod. To verify the fault, the command reads the status that " +
		"Chaos Mesh reports.")
	say("Duration: %s. Undo: `kubectl gpu-fault revert RUN`. Chaos Mesh ends the fault when the TTL expires; the objects remain until "+
		"the revert.", p.TTL.String())
}

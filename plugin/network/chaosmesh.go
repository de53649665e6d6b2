package network

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/chaosmesh"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// The values of --via.
const (
	viaNode      = "node"
	viaChaosMesh = "chaos-mesh"
)

func (p *partition) byChaosMesh() bool { return p.via == viaChaosMesh }

// validateVia checks that Chaos Mesh can express the fault. The peers must have been parsed.
func (p *partition) validateVia() error {
	switch {
	case p.via != viaNode && !p.byChaosMesh():
		return fmt.Errorf("invalid value %q for --via: supported values: %s, %s", p.via, viaNode, viaChaosMesh)
	case !p.byChaosMesh():
		return nil
	case p.Nodes.Pod == "" && p.workload == "":
		return errors.New("--via chaos-mesh does not support all pods on a node: specify --pod POD or --workload TYPE/NAME")
	case p.port != 0 || p.protocol != "":
		return errors.New("--via chaos-mesh does not support --port and --protocol: a NetworkChaos selects packets by address")
	}
	for _, o := range slices.Concat(p.sent, p.received) {
		switch {
		case o.dns:
			return errors.New("--via chaos-mesh does not support the dns peer: a NetworkChaos selects packets by " +
				"address, not by port")
		case o.network.IsValid() && !o.network.Addr().Is4():
			return fmt.Errorf("--via chaos-mesh does not support the peer %s: Chaos Mesh handles IPv4 only", o.text)
		}
	}
	if p.loss == 0 && p.slow == nil {
		return nil
	}
	for _, o := range p.received {
		if o.name == "" {
			return fmt.Errorf("--via chaos-mesh does not support --from %s for %s: Chaos Mesh acts on the sender; "+
				"use --from pod/NAME, or --to", o.text, p.result())
		}
	}
	return nil
}

// chaos returns the changes to the pods on each node, and the objects of all changes.
func (p *partition) chaos(
	ctx context.Context, connection *kube.Connection, cluster *kube.Cluster, nodes []string, chosen podsByNode,
) (changes []fault.Change, _ []*unstructured.Unstructured, _ error) {
	if err := chaosmesh.Installed(cluster.Client); err != nil {
		return nil, nil, kube.Explain(err)
	}
	client, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, nil, err
	}
	mapper, err := connection.ToRESTMapper()
	if err != nil {
		return nil, nil, kube.Explain(err)
	}
	what, err := p.chaosFault(ctx, cluster, chosen, connection.LedgerNamespace)
	if err != nil {
		return nil, nil, err
	}
	var all []*unstructured.Unstructured
	for _, node := range nodes {
		what.Pods = nil
		for _, pod := range chosen[node] {
			what.Pods = append(what.Pods, pod.Namespace+"/"+pod.Name)
		}
		manifests, err := what.Manifests("gpu-fault-" + strings.ToLower(rand.Text()[:10]))
		if err != nil {
			return nil, nil, err
		}
		creation := &objects.Creation{
			Dynamic: client, Mapper: mapper, Objects: manifests, Target: ledger.Target{Kind: "Node", Name: node},
			LedgerNamespace: connection.LedgerNamespace, MarksOnly: true, ShowRun: true,
		}
		// Ignore missing permissions here, because the preflight reports all of them at once.
		if err := creation.Check(ctx); err != nil && !apierrors.IsForbidden(err) {
			return nil, nil, kube.Explain(err)
		}
		action := fmt.Sprintf("%s of %s: %s", p.effect(), count.Of(len(chosen[node]), "pod"), p.peers())
		changes = append(changes, chaosmesh.Verified(creation.Change(action), client, manifests, p.Pods.Timeout))
		all = append(all, manifests...)
	}
	return changes, all, nil
}

// chaosFault returns the fault for Chaos Mesh, without the pods, after checking that Chaos Mesh can inject it.
func (p *partition) chaosFault(
	ctx context.Context, cluster *kube.Cluster, chosen podsByNode, ledgerNamespace string,
) (what chaosmesh.Fault, err error) {
	what = chaosmesh.Fault{Loss: p.loss, Slow: p.slow, TTL: p.TTL.TTL}
	var namespaces []string
	for _, pods := range chosen {
		for i := range pods {
			what.Namespace = pods[i].Namespace
			namespaces = append(namespaces, what.Namespace)
			err = errors.Join(err, hasIPv4(&pods[i]))
		}
	}
	if err != nil {
		return what, err
	}
	add := func(side **chaosmesh.Peers, peers []peer) error {
		for _, o := range peers {
			if *side == nil {
				*side = &chaosmesh.Peers{}
			}
			if o.network.IsValid() {
				(*side).Networks = append((*side).Networks, o.network.String())
			}
			if o.name == "" {
				continue
			}
			pod, err := o.find(ctx, cluster.Client, cluster.Namespace)
			if err == nil { // Chaos Mesh also injects the fault in the peer
				err = errors.Join(checkPod(pod, ledgerNamespace), hasIPv4(pod))
			}
			if err != nil {
				return err
			}
			name := pod.Namespace + "/" + pod.Name
			if slices.Contains(chosen.names(), name) {
				return fmt.Errorf("peer %s is one of the selected pods: --via chaos-mesh requires other pods as peers", o.text)
			}
			(*side).Pods = append((*side).Pods, name)
			namespaces = append(namespaces, pod.Namespace)
		}
		return nil
	}
	if err = errors.Join(add(&what.To, p.sent), add(&what.From, p.received)); err != nil {
		return what, err
	}
	slices.Sort(namespaces)
	return what, chaosmesh.CheckNamespaces(ctx, cluster.Client, slices.Compact(namespaces))
}

func hasIPv4(pod *corev1.Pod) error {
	if slices.ContainsFunc(addressesOf(pod), netip.Addr.Is4) {
		return nil
	}
	return fmt.Errorf("pod %s/%s has no IPv4 address, and Chaos Mesh handles IPv4 only: omit --via", pod.Namespace, pod.Name)
}

// ChaosMeshPermissions returns the permissions for faults injected through Chaos Mesh, in addition to those for every
// fault.
func ChaosMeshPermissions() []fault.Permission {
	return append(targetPermissions(), chaosmesh.Permissions()...)
}

package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// NodeRemediator cordons and drains nodes. The cordon is a separate run, so it can be reverted from any machine.
type NodeRemediator struct {
	Session *fault.Session
	// TTL is the time after which `revert --expired` uncordons a node if this client has died.
	TTL   time.Duration
	Allow fault.Allowances
}

var _ Remediator = (*NodeRemediator)(nil)

// drainPause is the pause between two rounds of a drain, as in kubectl.
const drainPause = time.Second

func (n *NodeRemediator) plan(summary string, changes ...fault.Change) fault.Plan {
	return fault.Plan{
		Fault: "remediation", Summary: summary, Changes: changes, TTL: n.TTL, NoPods: true, Allow: n.Allow,
		Needs: RemediationPermissions(n.Session.Ledger.Namespace),
	}
}

// Preflight returns an error if the nodes cannot be cordoned, or if their number exceeds the blast radius limits.
func (n *NodeRemediator) Preflight(ctx context.Context, nodes []string) error {
	var changes []fault.Change
	for _, node := range nodes {
		change := cordon.Change(n.Session.Client, node)
		change.Target.Kind = "Node" // the limits apply to this kind
		changes = append(changes, change)
	}
	plan := n.plan("Simulated remediation", changes...)
	for _, node := range nodes {
		plan.Checks = append(plan.Checks, func(ctx context.Context) error {
			return cordon.Check(ctx, n.Session.Client, node)
		})
	}
	return n.Session.Preflight(ctx, plan)
}

// Cordon implements Remediator.
func (n *NodeRemediator) Cordon(ctx context.Context, node string) (string, error) {
	run, err := n.Session.Run(ctx, n.plan("Simulated remediation: cordon node "+node,
		cordon.Change(n.Session.Client, node)))
	if run == nil || run.IsClosed() {
		return "", err
	}
	return run.ID, err
}

// Drain implements Remediator. It evicts pods like `kubectl drain`, so that disruption budgets are respected. Pods that
// no controller would recreate stay. Drain does not use kubectl's own package, which would add 0.4 MB to the plugin.
func (n *NodeRemediator) Drain(ctx context.Context, node string) (stay []string, err error) {
	for {
		victims, lone, err := n.victims(ctx, node)
		if err != nil || len(victims) == 0 {
			return lone, err
		}
		for _, pod := range victims {
			if err := n.evict(ctx, pod); err != nil {
				return lone, err
			}
		}
		if pause(ctx, drainPause); ctx.Err() != nil {
			return lone, context.Cause(ctx)
		}
	}
}

// victims returns the pods on a node that a drain evicts, and the names of pods that would not be recreated.
func (n *NodeRemediator) victims(
	ctx context.Context, node string,
) (all []corev1.Pod, lone []string, err error) {
	pods, err := n.Session.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods on node %s: %w", node, err)
	}
	for _, pod := range pods.Items {
		switch {
		case !reaction.CanBeEvicted(&pod) || reaction.IsFinished(&pod):
		case metav1.GetControllerOf(&pod) == nil:
			lone = append(lone, pod.Namespace+"/"+pod.Name)
		default:
			all = append(all, pod)
		}
	}
	slices.Sort(lone)
	return all, lone, nil
}

// evict requests the eviction of a pod. If a disruption budget protects the pod, the next round tries again.
func (n *NodeRemediator) evict(ctx context.Context, pod corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	err := n.Session.Client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	if apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// RemediationPermissions returns the permissions for a simulated remediation.
func RemediationPermissions(ledgerNamespace string) []fault.Permission {
	return fault.Permissions(fault.BasePermissions(ledgerNamespace), cordon.Permissions(), []fault.Permission{
		{Verb: "list", Resource: "pods"},
		{Verb: "create", Resource: "pods/eviction"},
	})
}

package daemonpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Undoer deletes copies. Client may be nil if only Describe is called.
type Undoer struct {
	Client kubernetes.Interface
	// Progress receives the progress of a step; may be nil.
	Progress func(step ledger.Step, text string)
}

var _ fault.Needer = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	var d undo
	if json.Unmarshal(step.Undo.Data, &d) != nil || d.DaemonSet == "" {
		return "delete the copy of a pod; its DaemonSet creates its own again"
	}
	return fmt.Sprintf("delete pod %s in namespace %s; %s creates its own again", d.Pod, d.Namespace, Ref(d.DaemonSet))
}

// Needs implements fault.Needer.
func (u Undoer) Needs(step ledger.Step, _ string) []fault.Permission {
	var d undo
	if json.Unmarshal(step.Undo.Data, &d) != nil {
		return nil
	}
	return undoPermissions(d.Namespace)
}

func undoPermissions(namespace string) []fault.Permission {
	return []fault.Permission{
		{Verb: "get", Resource: "nodes"},
		{Verb: "get", Resource: "pods", Namespace: namespace},
		{Verb: "list", Resource: "pods", Namespace: namespace},
		{Verb: "delete", Resource: "pods", Namespace: namespace},
		{Verb: "get", Group: "apps", Resource: "daemonsets", Namespace: namespace},
	}
}

// Permissions returns what a replacement and its undo need in the namespace of the DaemonSet; empty means all.
func Permissions(namespace string) []fault.Permission {
	return append(undoPermissions(namespace),
		fault.Permission{Verb: "create", Resource: "pods", Namespace: namespace},
		fault.Permission{Verb: "patch", Resource: "pods", Namespace: namespace},
		fault.Permission{Verb: "create", Resource: "configmaps", Namespace: namespace},
		fault.Permission{Verb: "patch", Resource: "configmaps", Namespace: namespace})
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	var d undo
	if err := json.Unmarshal(step.Undo.Data, &d); err != nil {
		return "", "", fmt.Errorf("the record's undo cannot be read: %w", err)
	}
	node := step.Target.Name
	if err := d.validate(run.ID, node); err != nil {
		return "", "", fmt.Errorf("the record's undo is rejected: %w", err)
	}
	if u.Client == nil {
		return "", "", errors.New("no cluster to undo it in")
	}
	deleted, err := u.delete(ctx, run.ID, node, d)
	if err != nil {
		return "", "", err
	}
	own, err := u.successor(ctx, step, node, d)
	switch {
	case err != nil:
		return "", "", err
	case own == "":
		return ledger.StateReverted, fmt.Sprintf("%s has no pod on the node any more", Ref(d.DaemonSet)), nil
	case !deleted:
		return ledger.StateReverted, fmt.Sprintf("the copy no longer exists, and %s has pod %s on the node", Ref(d.DaemonSet), own), nil
	}
	if err := d.Devices.await(ctx, u.Client, node); err != nil {
		if ctx.Err() != nil {
			return "", "", err
		}
		return ledger.StateReverted, fmt.Sprintf("pod %s is that of %s again, but %v", own, Ref(d.DaemonSet), err), nil
	}
	return ledger.StateReverted, fmt.Sprintf("pod %s is that of %s again", own, Ref(d.DaemonSet)), nil
}

// delete deletes the copy if it has the seal of the run.
func (u Undoer) delete(ctx context.Context, run, node string, d undo) (deleted bool, err error) {
	pods := u.Client.CoreV1().Pods(d.Namespace)
	pod, err := pods.Get(ctx, d.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get pod %s: %w", d.Pod, err)
	case pod.Annotations[annotationSeal] != d.mark(run, node):
		return false, fmt.Errorf("pod %s in namespace %s is not the one that this run made: delete it by hand if it is", d.Pod,
			d.Namespace)
	}
	err = pods.Delete(ctx, d.Pod, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete pod %s: %w", d.Pod, err)
	}
	return true, poll(ctx, podTimeout, func(ctx context.Context) (bool, string, error) {
		now, err := pods.Get(ctx, d.Pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return true, "", nil
		}
		return false, fmt.Sprintf("pod %s is still being deleted", d.Pod), err
	})
}

// successor waits for the pod that the DaemonSet has on the node itself, and returns its name; empty if it has none
// because the DaemonSet or the node is gone, or the DaemonSet is not for the node any more.
func (u Undoer) successor(ctx context.Context, step ledger.Step, node string, d undo) (name string, err error) {
	ds, err := u.Client.AppsV1().DaemonSets(d.Namespace).Get(ctx, d.DaemonSet, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(ds.UID) != d.UID:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get %s: %w", Ref(d.DaemonSet), err)
	}
	if _, err := u.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return "", nil
	}
	if u.Progress != nil {
		u.Progress(step, "waiting for the pod of "+Ref(d.DaemonSet))
	}
	err = poll(ctx, podTimeout, func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, u.Client, d.Namespace, d.UID, node)
		if err != nil {
			return false, "", err
		}
		missing := fmt.Sprintf("%s has no pod on node %s yet", Ref(d.DaemonSet), node)
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return ready(&p) }); i >= 0 {
			name = pods[i].Name
		} else if len(pods) > 0 {
			missing = fmt.Sprintf("pod %s is not ready: %s", pods[0].Name, reason(&pods[0]))
		}
		return name != "", missing, nil
	})
	return name, err
}

package daemonpod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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
	// Timeout is the maximum duration of each wait. The default is 2 minutes.
	Timeout time.Duration
	// Progress receives the progress of a step. It may be nil.
	Progress func(step ledger.Step, text string)
}

var _ fault.Needer = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	var d undo
	if json.Unmarshal(step.Undo.Data, &d) != nil || d.DaemonSet == "" {
		return "delete the copy of a pod; the DaemonSet creates its own pod again"
	}
	return fmt.Sprintf("delete pod %s in namespace %s; %s creates its own pod again", d.Pod, d.Namespace, Ref(d.DaemonSet))
}

// Needs implements fault.Needer.
func (u Undoer) Needs(step ledger.Step, _ string) []fault.Permission {
	var d undo
	if json.Unmarshal(step.Undo.Data, &d) != nil {
		return nil
	}
	return undoPermissions(d.Namespace)
}

// Feature implements fault.Needer.
func (Undoer) Feature() string { return "nvml" }

func undoPermissions(namespace string) []fault.Permission {
	return []fault.Permission{
		{Verb: "get", Resource: "nodes"},
		{Verb: "get", Resource: "pods", Namespace: namespace},
		{Verb: "list", Resource: "pods", Namespace: namespace},
		{Verb: "delete", Resource: "pods", Namespace: namespace},
		{Verb: "get", Group: "apps", Resource: "daemonsets", Namespace: namespace},
	}
}

// Permissions returns the permissions that a replacement and its undo need in the namespace of the DaemonSet. Empty
// means all namespaces.
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
		return "", "", fmt.Errorf("the record's undo data cannot be read: %w", err)
	}
	node := step.Target.Name
	if err := d.validate(run.ID, node); err != nil {
		return "", "", fmt.Errorf("the record's undo data is rejected: %w", err)
	}
	if u.Client == nil {
		return "", "", errors.New("undoing the change requires a connection to the cluster")
	}
	done, err := u.delete(ctx, run.ID, node, d)
	if err != nil {
		return "", "", err
	}
	own, err := u.successor(ctx, step, node, d)
	ref := Ref(d.DaemonSet)
	switch {
	case err != nil:
		return "", "", err
	case own == "":
		return ledger.StateReverted, done + ref + " no longer has a pod on the node", nil
	}
	err = d.Devices.await(ctx, u.Client, node)
	if err == nil && d.DRA {
		err = d.Taints.await(ctx, u.Client, node)
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", "", err
		}
		return ledger.StateReverted, fmt.Sprintf("%spod %s belongs to %s again, but %v", done, own, ref, err), nil
	}
	return ledger.StateReverted, fmt.Sprintf("%spod %s belongs to %s again", done, own, ref), nil
}

// delete deletes the copy. It returns the first part of the message for the user.
func (u Undoer) delete(ctx context.Context, run, node string, d undo) (said string, err error) {
	const gone = "the copy no longer exists; "
	pods := u.Client.CoreV1().Pods(d.Namespace)
	pod, err := pods.Get(ctx, d.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return "", fmt.Errorf("get pod %s: %w", d.Pod, err)
	case d.made(run, node, pod):
	case d.PodUID != "" && string(pod.UID) != d.PodUID:
		return gone, nil // another client has created a pod with this name since then
	default:
		return "", fmt.Errorf("pod %s in namespace %s was not created by this run: if you know its purpose, delete it manually, "+
			"then repeat the revert", d.Pod, d.Namespace)
	}
	err = pods.Delete(ctx, d.Pod, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete pod %s: %w", d.Pod, err)
	}
	err = poll(ctx, u.timeout(), func(ctx context.Context) (bool, string, error) {
		now, err := pods.Get(ctx, d.Pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return true, "", nil
		}
		if err == nil && held(now) != "" {
			said = fmt.Sprintf("pod %s has terminated, and remains because of its finalizers %s; ", d.Pod, held(now))
			return true, "", nil
		}
		return false, fmt.Sprintf("pod %s is still being deleted", d.Pod), err
	})
	return said, err
}

// made reports whether the run created a pod that has the name of its copy. The run's seal on the pod is sufficient,
// regardless of the UID in the record. Without the seal, the pod must have the UID in the record and the container in
// which a copy waits. Labels and annotations may have been removed, but that container cannot be removed from a pod.
func (u undo) made(run, node string, pod *corev1.Pod) bool {
	if pod.Annotations[annotationSeal] == u.mark(run, node) {
		return true
	}
	return string(pod.UID) == u.PodUID &&
		slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == gateName })
}

func (u Undoer) timeout() time.Duration { return cmp.Or(u.Timeout, podTimeout) }

// successor waits for the DaemonSet's own pod on the node, and returns the pod's name. The name is empty if no such pod
// will be created, because the DaemonSet or the node no longer exists, or the DaemonSet no longer matches the node.
func (u Undoer) successor(ctx context.Context, step ledger.Step, node string, d undo) (name string, err error) {
	if ds, err := u.daemonSet(ctx, d); ds == nil || err != nil {
		return "", err
	}
	if u.Progress != nil {
		u.Progress(step, "waiting for the pod of "+Ref(d.DaemonSet))
	}
	err = poll(ctx, u.timeout(), func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, u.Client, d.Namespace, d.UID, node)
		if err != nil {
			return false, "", err
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Name == d.Pod && p.DeletionTimestamp != nil })
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return ready(&p) }); i >= 0 {
			name = pods[i].Name
			return true, "", nil
		}
		if len(pods) > 0 {
			return false, fmt.Sprintf("pod %s is not ready: %s", pods[0].Name, reason(&pods[0])), nil
		}
		wanted, err := u.wanted(ctx, node, d)
		return err == nil && !wanted, fmt.Sprintf("%s has no pod on node %s yet", Ref(d.DaemonSet), node), err
	})
	return name, err
}

// daemonSet returns the DaemonSet of the copy, or nil if it no longer exists.
func (u Undoer) daemonSet(ctx context.Context, d undo) (*appsv1.DaemonSet, error) {
	ds, err := u.Client.AppsV1().DaemonSets(d.Namespace).Get(ctx, d.DaemonSet, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(ds.UID) != d.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", Ref(d.DaemonSet), err)
	}
	return ds, nil
}

// wanted reports whether the DaemonSet and the node still exist and still match.
func (u Undoer) wanted(ctx context.Context, node string, d undo) (bool, error) {
	ds, err := u.daemonSet(ctx, d)
	if ds == nil || err != nil {
		return false, err
	}
	now, err := u.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get node %s: %w", node, err)
	}
	return wants(ds, now), nil
}

// Package fixes implements the repairs that doctor offers. All of them are safe: each one can be undone or undoes
// itself. Like faults, they run in a fault.Session: with a preflight, a record before the change, a verification after
// it, and an undo if there is something to undo.
package fixes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Fault is the value of ledger.Run.Fault for repairs, which are not faults.
const Fault = "fix"

// UndoKind is the ledger.Undo.Kind for objects created by a repair.
const UndoKind = "created-runtimeclass"

// annotationRun is set on objects created by a repair, for users and `leftovers`. The undo identifies the objects by
// annotationSeal, which contains the mark of the seal.
const (
	annotationRun  = "gpufault.dev/run"
	annotationSeal = "gpufault.dev/seal"
)

// Data is the ledger's data about a created RuntimeClass.
type Data struct {
	Name    string `json:"name"`
	Handler string `json:"handler"`
}

// RuntimeClass returns the object that CreateRuntimeClass creates.
func RuntimeClass(name, handler string) *nodev1.RuntimeClass {
	return &nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: nodev1.SchemeGroupVersion.String(), Kind: "RuntimeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy}},
		Handler:    handler,
	}
}

// CreateRuntimeClass returns the change that creates a RuntimeClass. The undo deletes the RuntimeClass if it has not
// been changed.
func CreateRuntimeClass(client kubernetes.Interface, name, handler string) (fault.Change, error) {
	data, err := json.Marshal(Data{Name: name, Handler: handler})
	if err != nil {
		return fault.Change{}, fmt.Errorf("encode the undo: %w", err)
	}
	return fault.Change{
		Target: ledger.Target{Kind: "RuntimeClass", Name: name},
		Action: fmt.Sprintf("create RuntimeClass %s with handler %s", name, handler),
		Undo:   ledger.Undo{Kind: UndoKind, Data: data},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			class := RuntimeClass(name, handler)
			class.Annotations = map[string]string{
				annotationRun: r.Run().ID, annotationSeal: mark(r.Run().ID, name, handler),
			}
			made, err := client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil, fmt.Errorf("RuntimeClass %s was created in the meantime: run doctor again", name)
			}
			if err != nil {
				return nil, fmt.Errorf("create RuntimeClass %s: %w", name, err)
			}
			return []ledger.Evidence{{
				Source: "RuntimeClass " + name, Time: time.Now(),
				Text: fmt.Sprintf("uid %s, handler %s", made.UID, made.Handler),
			}}, nil
		},
	}, nil
}

// mark returns the seal's mark on the RuntimeClass of a run.
func mark(run, name, handler string) string {
	return seal.Of(run, UndoKind,
		fmt.Appendf(nil, "%q %q", name, handler)).Mark("node.k8s.io", "runtimeclasses", "", name)
}

// Undoer deletes objects created by a repair. Client may be nil if only Describe is called.
type Undoer struct{ Client kubernetes.Interface }

var _ fault.Undoer = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	return "delete RuntimeClass " + step.Target.Name + ", if it has not been changed"
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	var data Data
	if err := json.Unmarshal(step.Undo.Data, &data); err != nil {
		return "", "", fmt.Errorf("the record's undo data cannot be read: %w", err)
	}
	switch {
	case data.Name != step.Target.Name || step.Target.Kind != "RuntimeClass":
		return "", "", fmt.Errorf("the record's undo data is rejected: it is for RuntimeClass %s, but the target is %s",
			data.Name, step.Target)
	case u.Client == nil:
		return "", "", errors.New("undoing the change requires a connection to the cluster")
	}
	now, err := u.Client.NodeV1().RuntimeClasses().Get(ctx, data.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ledger.StateReverted, fmt.Sprintf("RuntimeClass %s no longer exists", data.Name), nil
	case err != nil:
		return "", "", fmt.Errorf("get RuntimeClass %s: %w", data.Name, err)
	case now.Annotations[annotationSeal] != mark(run.ID, data.Name, data.Handler):
		return ledger.StateSuperseded,
			fmt.Sprintf("RuntimeClass %s was not changed, because it is not the one created by this run", data.Name), nil
	case now.Handler != data.Handler || now.Overhead != nil || now.Scheduling != nil:
		return ledger.StateSuperseded,
			fmt.Sprintf("RuntimeClass %s was kept, because another client has changed it", data.Name), nil
	}
	err = u.Client.NodeV1().RuntimeClasses().Delete(ctx, data.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", "", fmt.Errorf("delete RuntimeClass %s: %w", data.Name, err)
	}
	return ledger.StateReverted, fmt.Sprintf("RuntimeClass %s was deleted", data.Name), nil
}

// RestartPod returns the change that deletes the device plugin's pod on a node that advertises no GPU, so that its
// DaemonSet recreates the pod. The change cannot be undone. It is verified when a new pod on the node is ready and the
// node advertises GPUs; the parameter every is the interval between checks of these conditions. The change does not
// reduce the capacity of the node. RestartPod checks whether a restart can help. The change repeats this check before
// it deletes the pod, because the user may take time to confirm.
func RestartPod(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, every time.Duration,
) (fault.Change, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" {
		return fault.Change{}, fmt.Errorf(
			"pod %s/%s does not belong to a DaemonSet that would recreate it: recreate the pod manually", pod.Namespace, pod.Name,
		)
	}
	if err := restartHelps(ctx, client, pod, owner); err != nil {
		return fault.Change{}, err
	}
	return fault.Change{
		// The lock on the node prevents faults in the meantime. The pod itself cannot be the target, because driver
		// namespaces are protected.
		Target: ledger.Target{Kind: "Node", Name: pod.Spec.NodeName},
		Action: fmt.Sprintf("delete pod %s/%s, so that DaemonSet %s recreates it", pod.Namespace, pod.Name,
			owner.Name),
		Undo:     ledger.Undo{Kind: ledger.UndoNone, Permanent: true},
		Harmless: true,
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			if err := restartHelps(ctx, client, pod, owner); err != nil {
				return nil, fmt.Errorf("nothing was deleted: %w", err)
			}
			err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
			r.Progress("deleted; waiting for the new pod, and for the node to advertise GPUs")
			return successor(ctx, client, pod, owner, every)
		},
	}, nil
}

// restartHelps returns an error if a restart would not help, or if the deleted pod would not be recreated in the same
// form.
func restartHelps(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, owner *metav1.OwnerReference,
) error {
	n, err := client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", pod.Spec.NodeName, err)
	}
	if gpus := advertised(n); gpus > 0 {
		return fmt.Errorf("node %s now advertises %s: there is nothing to fix", n.Name, count.Of(gpus, "GPU"))
	}
	now, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil):
		return fmt.Errorf("pod %s/%s was deleted in the meantime: run doctor again", pod.Namespace, pod.Name)
	case err != nil:
		return fmt.Errorf("get pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case !isReady(now):
		return fmt.Errorf("pod %s/%s is not running or not ready (%s), so recreating it would not help", pod.Namespace,
			pod.Name, now.Status.Phase)
	}
	ds, err := client.AppsV1().DaemonSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (ds.UID != owner.UID || ds.DeletionTimestamp != nil):
		return fmt.Errorf("DaemonSet %s/%s was deleted, so it would not recreate the pod", pod.Namespace,
			owner.Name)
	case err != nil:
		return fmt.Errorf("get DaemonSet %s/%s: %w", pod.Namespace, owner.Name, err)
	case !labels.SelectorFromSet(ds.Spec.Template.Spec.NodeSelector).Matches(labels.Set(n.Labels)):
		return fmt.Errorf(
			"DaemonSet %s/%s would no longer create a pod on node %s, because its nodeSelector does not match the node's labels",
			pod.Namespace, owner.Name, n.Name,
		)
	case ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType &&
		ds.Status.UpdatedNumberScheduled < ds.Status.DesiredNumberScheduled:
		return fmt.Errorf(
			"DaemonSet %s/%s has a pending update with the OnDelete strategy, so recreating the pod would change its "+
				"version: recreate the pod manually",
			pod.Namespace, owner.Name,
		)
	}
	return nil
}

// advertised returns the number of GPUs and MIG devices that a node advertises.
func advertised(n *corev1.Node) (sum int64) {
	for name, q := range n.Status.Capacity {
		if facts.IsGPUResource(name) {
			sum += q.Value()
		}
	}
	return sum
}

func isReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && podutils.IsPodReady(pod)
}

// successor waits until the owner's new pod on the node is ready and the node advertises GPUs.
func successor(
	ctx context.Context, client kubernetes.Interface, was *corev1.Pod, owner *metav1.OwnerReference,
	every time.Duration,
) ([]ledger.Evidence, error) {
	var proof []ledger.Evidence
	missing := fmt.Sprintf("no new pod is ready on node %s yet", was.Spec.NodeName)
	err := wait.PollUntilContextCancel(ctx, every, true, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods(was.Namespace).List(ctx,
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", was.Spec.NodeName).String()})
		if err != nil {
			return false, fmt.Errorf("find the new pod: %w", err)
		}
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
			by := metav1.GetControllerOf(&p)
			return by != nil && by.UID == owner.UID && p.UID != was.UID && p.Spec.NodeName == was.Spec.NodeName &&
				isReady(&p)
		})
		if i < 0 {
			return false, nil
		}
		p := &pods.Items[i]
		missing = fmt.Sprintf("the new pod %s is ready, but node %s still advertises no GPU", p.Name,
			p.Spec.NodeName)
		n, err := client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("get node %s: %w", p.Spec.NodeName, err)
		}
		if advertised(n) == 0 {
			return false, nil
		}
		proof = []ledger.Evidence{{
			Source: fmt.Sprintf("Pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName), Time: time.Now(),
			Text: fmt.Sprintf("%s, uid %s, created by DaemonSet %s as a replacement for %s", p.Status.Phase, p.UID, owner.Name,
				was.Name),
		}, {
			Source: "Node " + n.Name + " .status.capacity", Time: time.Now(), Text: count.Of(advertised(n), "GPU"),
		}}
		return true, nil
	})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("the pod was deleted, but %s: %w", missing, context.Cause(ctx))
	}
	return proof, err
}

// Permissions returns the permissions that repairs need in addition to those for every run: for pods in the namespace,
// or for RuntimeClasses if namespace is empty.
func Permissions(namespace string) []fault.Permission {
	if namespace != "" {
		return []fault.Permission{
			{Verb: "delete", Resource: "pods", Namespace: namespace},
			{Verb: "get", Resource: "pods", Namespace: namespace},
			{Verb: "list", Resource: "pods", Namespace: namespace},
			{Verb: "get", Group: "apps", Resource: "daemonsets", Namespace: namespace},
			{Verb: "get", Resource: "nodes"},
		}
	}
	const group = "node.k8s.io"
	return []fault.Permission{
		{Verb: "create", Group: group, Resource: "runtimeclasses"},
		{Verb: "get", Group: group, Resource: "runtimeclasses"},
		{Verb: "delete", Group: group, Resource: "runtimeclasses"},
	}
}

// AllPermissions returns the permissions for all repairs. Device plugins may be in any namespace.
func AllPermissions() []fault.Permission {
	all := Permissions("")
	for _, p := range Permissions("any") {
		p.Namespace = ""
		all = append(all, p)
	}
	return fault.Permissions(all)
}

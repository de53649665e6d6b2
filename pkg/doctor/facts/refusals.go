package facts

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Refusal describes pods that the API server refuses to create for an owner.
type Refusal struct {
	Event *corev1.Event
	Owner finding.Object
	// GPU is true if the pods are known to request GPUs. Component is the GPU software component to which the pods
	// belong, if any.
	GPU       bool
	Component Component
}

// ownedBy returns the pods that an object controls.
func (f *Facts) ownedBy(owner finding.Object) []*corev1.Pod {
	var all []*corev1.Pod
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		c := metav1.GetControllerOf(pod)
		if c != nil && pod.Namespace == owner.Namespace && c.Kind == owner.Kind && c.Name == owner.Name {
			all = append(all, pod)
		}
	}
	return all
}

// CreatedSince reports whether the owner has created a pod since t.
func (f *Facts) CreatedSince(owner finding.Object, t time.Time) bool {
	return slices.ContainsFunc(f.ownedBy(owner), func(pod *corev1.Pod) bool { return pod.CreationTimestamp.After(t) })
}

// RolledOut reports whether a ReplicaSet is obsolete because its Deployment has a newer ReplicaSet with ready pods.
func (f *Facts) RolledOut(owner finding.Object) bool {
	deployment := owner.Name[:max(strings.LastIndexByte(owner.Name, '-'), 0)]
	if owner.Kind != "ReplicaSet" || deployment == "" || len(f.ownedBy(owner)) > 0 {
		return false
	}
	return slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
		c := metav1.GetControllerOf(&pod)
		if c == nil || pod.Namespace != owner.Namespace || c.Kind != owner.Kind || c.Name == owner.Name {
			return false
		}
		return c.Name[:max(strings.LastIndexByte(c.Name, '-'), 0)] == deployment && RunsReady(&pod)
	})
}

// Refusal returns the refusal that is reported by an event about the pods' owner.
func (f *Facts) Refusal(owner finding.Object, e *corev1.Event) Refusal {
	x := Refusal{Event: e, Owner: owner, GPU: strings.Contains(e.Message, "nvidia.com/")}
	for _, pod := range f.ownedBy(owner) {
		x.GPU = x.GPU || f.AsksForGPU(pod)
		if c := ComponentOf(pod.Labels, &pod.Spec); c != "" {
			x.Component = c
		}
	}
	for i := range f.Snapshot.DaemonSets {
		set := &f.Snapshot.DaemonSets[i]
		if owner.Kind == "DaemonSet" && set.Namespace == owner.Namespace && set.Name == owner.Name {
			x.Component = ComponentOf(set.Spec.Template.Labels, &set.Spec.Template.Spec)
		}
	}
	if x.Component == "" && strings.HasPrefix(owner.Name, "gpu-operator") && owner.Kind == "ReplicaSet" {
		x.Component = Operator // the operator has no pods
	}
	return x
}

// retried is the time within which controllers create a pod again after a failure. They wait at most 1,000 seconds. If
// an owner has no newer event, it was deleted or no longer needs the pod.
const retried = 20 * time.Minute

// Refusals returns the recent FailedCreate rejections that no newer pod or event contradicts, one for each owner.
func (f *Facts) Refusals() []Refusal {
	var all []Refusal
	seen := map[finding.Object]bool{}
	for _, e := range f.Events {
		owner := finding.Object{
			Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
		}
		if e.Reason != "FailedCreate" || seen[owner] || f.Now.Sub(EventTime(e)) > retried {
			continue
		}
		newest := e
		for _, other := range f.EventsOf(owner.Kind, owner.Namespace, owner.Name) { // newest first
			if other.Reason == "FailedCreate" || other.Reason == "SuccessfulCreate" {
				newest = other
				break
			}
		}
		seen[owner] = true
		if newest.Reason != "FailedCreate" || f.CreatedSince(owner, EventTime(newest)) || f.RolledOut(owner) ||
			f.classExists(newest.Message) {
			continue
		}
		all = append(all, f.Refusal(owner, newest))
	}
	return all
}

// classExists reports whether a rejection names a RuntimeClass that was missing at the time but exists now. The
// controller then retries the request on its own.
func (f *Facts) classExists(message string) bool {
	id, class := Recognize(message)
	return id == "rc.handler-mismatch" && f.Missing("api/runtimeclasses") == "" && f.RuntimeClass(class) != nil
}

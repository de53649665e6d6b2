package baseline

import (
	"fmt"
	"hash/fnv"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// This file finds changes that have no effect yet, because they only prevent a later deletion or take effect on a
// rollback.

const heldNote = "the finalizer %s prevents its deletion"

// HeldNote returns the note for an object whose deletion is prevented by the finalizer.
func HeldNote(finalizer string) string { return fmt.Sprintf(heldNote, finalizer) }

// Held reports whether the note says that a finalizer prevents the object's deletion.
func (d Difference) Held() bool {
	var finalizer string
	n, _ := fmt.Sscanf(d.Note, heldNote, &finalizer)
	return n == 1 && d.Note == HeldNote(finalizer)
}

// HeldBy returns those of a built-in object's finalizers that no Kubernetes controller removes from objects of that
// kind.
func HeldBy(kind schema.GroupKind, finalizers []string) []string {
	if !builtIn(kind.Group) {
		return nil // the object is an operator's
	}
	known := append(map[string][]string{
		"Pod":                           {"batch.kubernetes.io/job-tracking"},
		"PersistentVolumeClaim":         {"kubernetes.io/pvc-protection"},
		"Service":                       {"service.kubernetes.io/load-balancer-cleanup"},
		"ResourceClaim.resource.k8s.io": {"resource.kubernetes.io/delete-protection"},
	}[kind.String()], metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents)
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return slices.Contains(known, f) })
}

// heldFromOutside returns the finalizers with which a candidate can prevent the deletion of an object outside the
// exercise's namespaces. Other kinds are not checked, because their controllers add and remove finalizers at any time.
func heldFromOutside(kind schema.GroupKind, metadata map[string]any) []any {
	if kind.Group != rbacv1.GroupName && kind.Kind != "Node" && kind.Kind != "RuntimeClass" {
		return nil
	}
	all, _ := metadata["finalizers"].([]any)
	return slices.DeleteFunc(slices.Clone(all), func(each any) bool {
		name, is := each.(string)
		return !is || len(HeldBy(kind, []string{name})) == 0
	})
}

// rewritten returns a note if the template of a Deployment's old revision was changed, so that a rollback would use
// something that never ran. Otherwise, it returns "". The name of a revision contains the hash of its template. This
// hash can be verified only if this program hashes the current revision as the cluster's controller does, which depends
// on the release of Kubernetes.
func (c *census) rewritten(kind schema.GroupKind, set *unstructured.Unstructured) string {
	controller := metav1.GetControllerOfNoCopy(set)
	if kind != (schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}) || controller == nil {
		return ""
	}
	deployment := c.owner(*controller)
	if deployment == nil || deployment.GetKind() != "Deployment" || hasItsHash(set) ||
		mapAt(deployment.Object, "status")["collisionCount"] != nil {
		return ""
	}
	for k, other := range c.objects {
		by := metav1.GetControllerOfNoCopy(other)
		if k.kind == kind && by != nil && by.UID == controller.UID && hasItsHash(other) {
			return "its template was changed, and a rollback of Deployment " + deployment.GetName() + " would use it"
		}
	}
	return ""
}

// hasItsHash reports whether the pod-template-hash label of a ReplicaSet is the hash of its template.
func hasItsHash(set *unstructured.Unstructured) bool {
	var typed appsv1.ReplicaSet
	if runtime.DefaultUnstructuredConverter.FromUnstructured(set.Object, &typed) != nil {
		return false
	}
	label := typed.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	delete(typed.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return hashOfTemplate(typed.Spec.Template) == label
}

// hashOfTemplate returns the hash of a Deployment's template, as its controller computes it without a collision.
// https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/controller_utils.go
func hashOfTemplate(template corev1.PodTemplateSpec) string {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, dump.ForHash(template)) // a hash never fails
	return rand.SafeEncodeString(fmt.Sprint(hash.Sum32()))
}

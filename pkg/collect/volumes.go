package collect

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
)

// mostVolumes is the maximum number of volumes to collect.
const mostVolumes = 20

// volumes collects the locations of the volumes of unscheduled pods, if the scheduler rejects nodes because of these
// volumes, and the storage classes of claims that are not bound.
func (c *collector) volumes(ctx context.Context) error {
	for i := range c.s.Pods {
		pod := &c.s.Pods[i]
		if !facts.Unscheduled(pod) ||
			!refusedFor(pod, scheduler.VolumeElsewhere) && !refusedFor(pod, scheduler.Unbound) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil ||
				len(c.s.PersistentVolumes)+len(c.s.PersistentVolumeClaims) >= mostVolumes {
				continue
			}
			err := c.volume(ctx, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
			switch {
			case err == nil || apierrors.IsNotFound(err):
			case ctx.Err() != nil:
				return nil // Collect reports the error
			default:
				c.missing("api/persistentvolumes", reason(err))
				return nil
			}
		}
	}
	return nil
}

// refusedFor reports whether kind returns true for the scheduler's message about a pod.
func refusedFor(pod *corev1.Pod, kind func(message string) bool) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && kind(condition.Message) {
			return true
		}
	}
	return false
}

// volume collects the location of the volume that is bound to a claim, or the claim if no volume is bound. It ignores
// the other fields of a volume, such as the attributes of its driver.
func (c *collector) volume(ctx context.Context, namespace, claim string) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	core := schema.GroupVersion{Version: "v1"}
	pvc, err := c.Dynamic.Resource(core.WithResource("persistentvolumeclaims")).Namespace(namespace).
		Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	name, _, _ := unstructured.NestedString(pvc.Object, "spec", "volumeName")
	if name == "" {
		spec := map[string]any{}
		if class, set, _ := unstructured.NestedString(pvc.Object, "spec", "storageClassName"); set {
			spec["storageClassName"] = class
		}
		pvc.Object["spec"] = spec
		pvc.Object["metadata"] = map[string]any{"namespace": namespace, "name": claim}
		delete(pvc.Object, "status")
		c.s.PersistentVolumeClaims = append(c.s.PersistentVolumeClaims, *pvc)
		return nil
	}
	pv, err := c.Dynamic.Resource(core.WithResource("persistentvolumes")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	affinity, _, _ := unstructured.NestedFieldNoCopy(pv.Object, "spec", "nodeAffinity")
	claimed := map[string]any{"namespace": namespace, "name": claim}
	pv.Object["spec"] = map[string]any{"nodeAffinity": affinity, "claimRef": claimed}
	pv.Object["metadata"] = map[string]any{"name": name}
	delete(pv.Object, "status")
	c.s.PersistentVolumes = append(c.s.PersistentVolumes, *pv)
	return nil
}

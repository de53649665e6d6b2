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

// volumes collects the locations of the volumes of unscheduled pods, if the scheduler rejects nodes because of them.
func (c *collector) volumes(ctx context.Context) error {
	for i := range c.s.Pods {
		pod := &c.s.Pods[i]
		if !facts.Unscheduled(pod) || !elsewhere(pod) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil || len(c.s.PersistentVolumes) >= mostVolumes {
				continue
			}
			pv, err := c.volume(ctx, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
			switch {
			case err == nil && pv != nil:
				c.s.PersistentVolumes = append(c.s.PersistentVolumes, *pv)
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

func elsewhere(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && scheduler.VolumeElsewhere(condition.Message) {
			return true
		}
	}
	return false
}

// volume returns the location of the volume that is bound to a claim, or nil if there is none. The rest of the volume,
// such as the attributes of its driver, is not needed.
func (c *collector) volume(ctx context.Context, namespace, claim string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	core := schema.GroupVersion{Version: "v1"}
	pvc, err := c.Dynamic.Resource(core.WithResource("persistentvolumeclaims")).Namespace(namespace).
		Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	name, _, _ := unstructured.NestedString(pvc.Object, "spec", "volumeName")
	if name == "" {
		return nil, nil
	}
	pv, err := c.Dynamic.Resource(core.WithResource("persistentvolumes")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	affinity, _, _ := unstructured.NestedFieldNoCopy(pv.Object, "spec", "nodeAffinity")
	claimed := map[string]any{"namespace": namespace, "name": claim}
	pv.Object["spec"] = map[string]any{"nodeAffinity": affinity, "claimRef": claimed}
	pv.Object["metadata"] = map[string]any{"name": name}
	delete(pv.Object, "status")
	return pv, nil
}

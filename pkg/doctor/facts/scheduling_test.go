package facts

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestDemand verifies that a pod's demand is the same as in the scheduler: the sum of its containers and sidecars or,
// if higher, the largest demand of an init container and the sidecars before it.
func TestDemand(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	c := func(n int64, sidecar bool) corev1.Container {
		made := corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI),
		}}}
		if sidecar {
			made.RestartPolicy = &always
		}
		return made
	}
	for name, x := range map[string]struct {
		init, main []corev1.Container
		want       int64
	}{
		"containers add up": {nil, []corev1.Container{c(1, false), c(2, false)}, 3},
		"the greatest init container": {
			[]corev1.Container{c(4, false), c(2, false)}, []corev1.Container{c(1, false)}, 4,
		},
		"a sidecar runs beside": {[]corev1.Container{c(1, true)}, []corev1.Container{c(2, false)}, 3},
		"an init container after a sidecar": {
			[]corev1.Container{c(1, true), c(4, false)}, []corev1.Container{c(1, false)}, 5,
		},
		"a sidecar after the init container": {
			[]corev1.Container{c(4, false), c(1, true)}, []corev1.Container{c(1, false)}, 4,
		},
		"only an init container asks for GPUs": {[]corev1.Container{c(2, false)}, []corev1.Container{{}}, 2},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: x.init, Containers: x.main}}
		if got := Demand(pod)["nvidia.com/gpu"]; got != x.want {
			t.Errorf("%s: the pod asks for %d GPUs, want %d", name, got, x.want)
		}
	}
}

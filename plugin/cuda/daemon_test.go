package cuda

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSuppliesDevices protects new pods of the workload from being rejected while the undo restarts the device plugin.
func TestSuppliesDevices(t *testing.T) {
	t.Parallel()
	pod := func(app, path string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}},
			}},
		}
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"NVIDIA's device plugin":           {pod("nvidia-device-plugin-daemonset", "/"), true},
		"a device plugin":                  {pod("toy", "/var/lib/kubelet/device-plugins"), true},
		"a DRA driver":                     {pod("dra", "/var/lib/kubelet/plugins_registry/"), true},
		"a plugin's own directory":         {pod("dra", "/var/lib/kubelet/plugins/gpu.nvidia.com"), true},
		"another directory of the kubelet": {pod("plugin", "/var/snap/microk8s/common/var/lib/kubelet/device-plugins"), true},
		"dcgm-exporter":                    {pod("nvidia-dcgm-exporter", "/var/lib/kubelet/pod-resources"), false},
		"a reader":                         {pod("reader", "/proc/driver"), false},
	} {
		if got := suppliesDevices(test.pod); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
		if got := isDRADriver(test.pod); got != (test.pod.Labels["app"] == "dra") {
			t.Errorf("%s: is of a DRA driver: %t", name, got)
		}
	}
}

// TestReactionText: a DRA driver reports a fault by a taint, and its devices stay allocatable. So the evidence says
// that it ignores the fault only if no device has a new taint either.
func TestReactionText(t *testing.T) {
	t.Parallel()
	const same, ignores = "the number of allocatable devices is unchanged", ", 15s after the fault: c ignores the fault"
	for _, test := range []struct {
		changed   []string
		publishes bool
		want      string
	}{
		{[]string{"allocatable nvidia.com/gpu 2 -> 1"}, false, "allocatable nvidia.com/gpu 2 -> 1, 0.9 s after the fault"},
		{nil, false, same + ignores},
		{nil, true, "no device has a new taint, and " + same + ignores},
	} {
		if got := reaction(test.changed, test.publishes, "c", 900*time.Millisecond).Text; got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

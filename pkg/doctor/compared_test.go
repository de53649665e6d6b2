package doctor

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// signed reports whether one of the findings has the signature.
func signed(all []finding.Finding, id string) bool {
	for _, found := range all {
		if found.Signature == id {
			return true
		}
	}
	return false
}

// TestShutOut verifies that a node's taint is the cause only if the pod is meant for this node. A pod that tolerates
// all taints could also run on the control plane.
func TestShutOut(t *testing.T) {
	t.Parallel()
	plugin := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "nvidia-device-plugin"}}
	plugin.Spec.Template.Spec.Containers = []corev1.Container{{Image: "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"}}
	bare := func(n *corev1.Node) {
		n.Labels = map[string]string{"group": "t4"}
		delete(n.Status.Allocatable, "nvidia.com/gpu")
		delete(n.Status.Capacity, "nvidia.com/gpu")
	}
	tolerates := func(key string) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
		}
	}
	for name, c := range map[string]struct {
		taint string
		pod   []podChange
		want  bool
	}{
		"selects the node":     {"dedicated", []podChange{tolerates("dedicated"), selector("group", "t4")}, true},
		"taint of GPUs":        {"example.com/gpu", []podChange{tolerates("example.com/gpu")}, true},
		"tolerates everything": {"dedicated", []podChange{tolerates(""), selector("group", "t4")}, false},
		"control plane": {
			"node-role.kubernetes.io/control-plane", []podChange{tolerates("node-role.kubernetes.io/control-plane"),
				selector("group", "t4")}, false,
		},
		"other node":      {"dedicated", []podChange{tolerates("dedicated"), selector("group", "a100")}, false},
		"selects nothing": {"dedicated", []podChange{tolerates("dedicated")}, false},
	} {
		b := newBench().node("n", 0, bare, tainted(c.taint, "x")).pod("p", "", 1, c.pod...)
		b.DaemonSets = []appsv1.DaemonSet{plugin}
		if _, all := b.tell(t); signed(all, "device-plugin-does-not-tolerate-taint") != c.want {
			t.Errorf("%s: the taint is the cause: want %t: %+v", name, c.want, all)
		}
	}
}

// TestVolumesCompared verifies that a mount or a missing fsGroup is the cause of a denied write only if the path is in
// the volume and the container's settings do not exclude this cause.
func TestVolumesCompared(t *testing.T) {
	t.Parallel()
	one := int64(1000)
	root := int64(0)
	mounts := func(readOnly bool, s *corev1.PodSecurityContext) podChange {
		return func(p *corev1.Pod) {
			p.Spec.SecurityContext = s
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
				{Name: "v", MountPath: "/data", ReadOnly: readOnly},
			}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models"},
			}}}
		}
	}
	for name, c := range map[string]struct {
		change    podChange
		log, want string
	}{
		"no group": {
			mounts(false, nil), "mkdir: can't create directory '/data/x': Permission denied", "volume-without-fsgroup",
		},
		"a group": {mounts(false, &corev1.PodSecurityContext{FSGroup: &one}), "open /data/x: Permission denied", ""},
		"root": {
			mounts(false, &corev1.PodSecurityContext{RunAsUser: &root}), "open /data/x: Permission denied", "",
		},
		"other path": {mounts(false, nil), "open /database/x: Permission denied", ""},
		"read-only": {
			mounts(true, nil), "OSError: [Errno 30] Read-only file system: '/data/x'", "volume-mounted-read-only",
		},
		"not the mount": {
			mounts(true, nil), "OSError: [Errno 30] Read-only file system: '/usr/lib/x'", "",
		},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, crashing(1, "Error"), c.change).previous("p", c.log)
		_, all := b.tell(t)
		for _, id := range []string{"volume-without-fsgroup", "volume-mounted-read-only"} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

// TestServicesHold verifies that doctor recommends waiting for GPUs only if a pod that holds them may finish.
func TestServicesHold(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]bool{"ReplicaSet": true, "Job": false} {
		b := newBench().node("n", 1).pod("server", "n", 1, owned(kind, "server")).pod("p", "", 1)
		_, all := b.tell(t)
		for _, found := range all {
			if found.ID == "sched.all-in-use" && strings.Contains(found.Title, "services hold 1 of the 1") != want {
				t.Errorf("%s: %+v", kind, found)
			}
		}
	}
}

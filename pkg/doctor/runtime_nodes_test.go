package doctor

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// readNode returns a healthy cluster with a node that was read: containerd in this release with these files.
func readNode(t *testing.T, release string, files ...string) *snapshot.Snapshot {
	t.Helper()
	c := configOf(t, release, files...)
	return gpuCluster(
		api.Runtime{Kubelet: api.Kubelet{PID: 100, CgroupDriver: "systemd"}, Instance: instanceOf(c, daemonWith(c))},
	)
}

// kubeadmNode returns a kubeadm node with the handler nvidia.
func kubeadmNode(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	return readNode(t, "1.7.28", rootConfig, nodeConfig(t, "v2-kubeadm.toml"))
}

// talosNode returns a Talos node that was not read. Its device plugin has a RuntimeClass, but a GPU pod has none.
func talosNode(t *testing.T, strategy string) *snapshot.Snapshot {
	t.Helper()
	s := kubeadmNode(t)
	s.Pods[1].Spec.RuntimeClassName = nil
	s.Nodes[0].Status.NodeInfo.OSImage = "Talos (v1.9.0)"
	delete(s.Hosts, "gpu-1")
	pluginEnv(s, corev1.EnvVar{Name: "DEVICE_LIST_STRATEGY", Value: strategy})
	for i := range s.Pods {
		if strings.Contains(s.Pods[i].Name, "device-plugin") {
			s.Pods[i].Spec.RuntimeClassName = new("nvidia")
		}
	}
	return s
}

func kubeadmConfig(t *testing.T) *containerd.Config {
	t.Helper()
	return configOf(t, "1.7.28", rootConfig, nodeConfig(t, "v2-kubeadm.toml"))
}

// withoutWatcher returns a node whose containerd started at 11:55. At the given time, a containerd logged that no
// inotify instance was left, as containerd 2.2 did on a node in the test cluster.
func withoutWatcher(t *testing.T, at string, instance *api.Instance) *snapshot.Snapshot {
	t.Helper()
	s := gpuCluster(api.Runtime{Kubelet: api.Kubelet{PID: 100, CgroupDriver: "systemd"}, Instance: instance})
	host := s.Hosts["gpu-1"]
	host.Probe.Units = []api.Unit{
		{
			Name: "containerd.service", PID: instance.PID,
			Started: runtimeTime.Add(-5*time.Minute + 400*time.Millisecond),
		},
	}
	host.Probe.Sysctls = map[string]string{"fs.inotify.max_user_instances": "128"}
	host.Journals = map[string]string{"containerd.service": "2026-01-01T" + at +
		`+0000 gpu-1 containerd[50]: time="2026-01-01T` + at +
		`.407827763Z" level=warning msg="failed to load plugin" error="failed to create CRI service: failed to create cni conf monitor for default: ` +
		`failed to create fsnotify watcher: too many open files" id=io.containerd.grpc.v1.cri type=io.containerd.grpc.v1` +
		"\n"}
	return s
}

// withPart adds a component's pod to the node.
func withPart(s *snapshot.Snapshot, name, image string, ready bool, env ...corev1.EnvVar) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	s.Pods = append([]corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: "gpu-1", Containers: []corev1.Container{{Name: "ctr", Image: image, Env: env}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}}, s.Pods...)
	return &s.Pods[0]
}

func withLog(s *snapshot.Snapshot, pod, text string) *snapshot.Snapshot {
	s.Logs = append(s.Logs, snapshot.Log{Namespace: "gpu", Pod: pod, Container: "main", Text: text})
	return s
}

func pluginEnv(s *snapshot.Snapshot, env ...corev1.EnvVar) { s.Pods[0].Spec.Containers[0].Env = env }

func cannotStart(s *snapshot.Snapshot, reason, message string) *snapshot.Snapshot {
	pod := &s.Pods[len(s.Pods)-1]
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name:  "main",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
	return s
}

func policyWith(spec map[string]any) []unstructured.Unstructured {
	return []unstructured.Unstructured{{Object: map[string]any{
		"metadata": map[string]any{"name": "cluster-policy"}, "status": map[string]any{"state": "ready"}, "spec": spec,
	}}}
}

// changing returns a node whose kubelet and containerd use different cgroup drivers, with two pods whose sandboxes were
// recreated.
func changing(t *testing.T, release string, times int32) *snapshot.Snapshot {
	t.Helper()
	s := readNode(t, release, rootConfig, "version = 2\n")
	s.Hosts[s.Nodes[0].Name].Runtime.Kubelet.CgroupDriver = "systemd"
	for _, name := range []string{"one", "two"} {
		s.Pods = append(s.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
			Spec:       corev1.PodSpec{NodeName: s.Nodes[0].Name, Containers: []corev1.Container{{Name: "main"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		})
		s.Events = append(s.Events, corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: name},
			Reason:         "SandboxChanged",
			Message:        "Pod sandbox changed, it will be killed and re-created.",
			Type:           corev1.EventTypeNormal,
			Count:          times,
			LastTimestamp:  metav1.NewTime(s.Meta.Created),
		})
	}
	return s
}

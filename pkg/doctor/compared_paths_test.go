package doctor

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestPathsCompared verifies that a missing or protected file is explained by the volume at its path, and that a file
// in the image is not.
func TestPathsCompared(t *testing.T) {
	t.Parallel()
	const lost = "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.jsonl'"
	const inGo = "open /data/key: no such file or directory"
	const noModel = "OSError: /data/data/m does not exist"
	const readOnly = "OSError: [Errno 30] Read-only file system: '/data/out'"
	const denied = "PermissionError: [Errno 13] Permission denied: '/data/out'"
	runs := func(args ...string) podChange {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Args = args }
	}
	at := func(path string, source corev1.VolumeSource) podChange {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: path}}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
		}
	}
	as := func(user int64) podChange {
		return func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user} }
	}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	config := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}
	config.ConfigMap.Name = "cm"
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	host := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/mnt/data"}}
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
	for name, c := range map[string]struct {
		changes   []podChange
		log, want string
	}{
		"claim":          {[]podChange{at("/data", claim)}, lost, "file-missing-in-volume"},
		"ConfigMap":      {[]podChange{at("/data", config)}, lost, "file-missing-in-configmap"},
		"Secret":         {[]podChange{at("/data", secret)}, inGo, "file-missing-in-configmap"},
		"emptyDir":       {[]podChange{at("/data", empty)}, lost, "model-directory-in-empty-volume"},
		"emptyDir in Go": {[]podChange{at("/data", empty)}, inGo, "file-missing-in-emptydir"},
		"argument":       {[]podChange{runs("--train-file", "/data/train.jsonl")}, lost, "file-named-by-argument-missing"},
		"parent in env": {[]podChange{func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DATA_DIR", Value: "/data"}}
		}}, lost, "file-named-by-argument-missing"},
		"of the image":     {nil, lost, ""},
		"earlier line":     {[]podChange{at("/data", claim)}, lost + longLog, ""},
		"twice":            {[]podChange{runs("--model", "/data/data/m"), at("/data", claim)}, noModel, "mount-path-twice"},
		"host path":        {[]podChange{at("/data", host), as(1000)}, denied, "user-may-not-write-to-host-path"},
		"image":            {[]podChange{as(1000)}, denied, "user-may-not-write-to-image"},
		"image, by root":   {[]podChange{as(0)}, denied, ""},
		"read-only Secret": {[]podChange{at("/data", secret)}, readOnly, "writes-to-configmap"},
	} {
		changes := append([]podChange{crashing(1, "Error")}, c.changes...)
		b := newBench().node("n", 1).pod("p", "n", 1, changes...)
		b.previous("p", c.log)
		_, all := b.tell(t)
		for _, id := range []string{
			"file-missing-in-volume", "file-missing-in-configmap", "model-directory-in-empty-volume",
			"file-missing-in-emptydir", "file-named-by-argument-missing", "mount-path-twice",
			"user-may-not-write-to-host-path", "user-may-not-write-to-image", "writes-to-configmap",
		} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

const longLog = "\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n21"

// TestUnreadyWithoutDirectory verifies that a directory that a running program may not create is reported only if the
// pod is not ready.
func TestUnreadyWithoutDirectory(t *testing.T) {
	t.Parallel()
	user := int64(1000)
	for name, c := range map[string]struct {
		ready corev1.ConditionStatus
		log   string
		want  bool
	}{
		"not ready":      {corev1.ConditionFalse, "ERROR Failed to start error=\"mkdir /data: permission denied\"", true},
		"ready":          {corev1.ConditionTrue, "ERROR Failed to start error=\"mkdir /data: permission denied\"", false},
		"only a warning": {corev1.ConditionFalse, "WARN no cache: mkdir /data: permission denied", false},
		"works later":    {corev1.ConditionFalse, "ERROR mkdir /data: permission denied\nINFO model loaded", false},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
			p.Status.Conditions[0].Status, p.CreationTimestamp = c.ready, benchAgo(5*time.Minute)
		}).log("p", c.log)
		if _, all := b.tell(t); signed(all, "user-may-not-create-directory") != c.want {
			t.Errorf("%s: want %t: %+v", name, c.want, all)
		}
	}
}

// TestPeerRefuses verifies that a refused connection is explained by an error in the peer's log if the peer is running.
func TestPeerRefuses(t *testing.T) {
	t.Parallel()
	for phase, want := range map[corev1.PodPhase]bool{corev1.PodRunning: true, corev1.PodPending: false} {
		b := newBench().node("n", 2).pod("launcher", "n", 1, crashing(1, "Error"))
		b.pod("w-0", "n", 1, func(p *corev1.Pod) { p.Spec.Hostname, p.Status.Phase = "w-0", phase })
		b.previous("launcher", "ssh: connect to host w-0.w.default.svc port 22: Connection refused")
		b.log("w-0", "bash: line 1: /usr/sbin/sshd: No such file or directory")
		if _, all := b.tell(t); signed(all, "mpi-worker-image-without-sshd") != want {
			t.Errorf("%s: want %t: %+v", phase, want, all)
		}
	}
}

// TestLivenessWhileLoading verifies that restarts by a liveness probe are reported even if the last one was a while
// ago, but not if the container has since terminated for another reason.
func TestLivenessWhileLoading(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{"the probe": true, "another": false} {
		b := newBench().node("n", 1).pod("p", "n", 1, func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.LivenessProbe = &corev1.Probe{InitialDelaySeconds: 900, ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)},
			}}
			at := benchAgo(16 * time.Minute)
			if reason == "another" {
				at = benchAgo(12 * time.Minute)
			}
			p.Status.Conditions = nil
			s := corev1.ContainerStatus{Name: c.Name, RestartCount: 9}
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: benchAgo(11 * time.Minute)}
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: at}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		})
		b.event("Pod", "p", "Killing", "Container c failed liveness probe, will be restarted", func(e *corev1.Event) {
			e.LastTimestamp = benchAgo(16 * time.Minute)
		})
		_, all := b.tell(t)
		if slices.ContainsFunc(all, func(f finding.Finding) bool { return f.ID == "wl.probe-failing" }) != want {
			t.Errorf("%s: want %t: %+v", reason, want, all)
		}
	}
}

package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestSilentDownload protects that a program that starts and has been silent for long is found, and that its
// last line and a download through Xet explain it.
func TestSilentDownload(t *testing.T) {
	t.Parallel()
	const loading, xet = "INFO %s [runner.py:1] Starting to load model m...", "hf-xet-download-stands-still"
	const nccl = loading + "\nINFO %s [pynccl.py:1] vLLM is using nccl==2.20.5"
	hub, direct := []string{"--model", "org/model"}, []corev1.EnvVar{{Name: "HF_HUB_DISABLE_XET", Value: "1"}}
	for name, c := range map[string]struct {
		ago   time.Duration
		args  []string
		env   []corev1.EnvVar
		log   string
		found bool
		want  string
	}{
		"from the hub":     {35 * time.Minute, hub, nil, loading, true, xet},
		"served":           {35 * time.Minute, []string{"serve", "org/model"}, nil, loading, true, xet},
		"without Xet":      {35 * time.Minute, hub, direct, loading, true, ""},
		"from a directory": {35 * time.Minute, []string{"--model", "/data/model"}, nil, loading, true, ""},
		"NCCL":             {35 * time.Minute, hub, nil, nccl, true, "vllm-hangs-at-nccl"},
		"recent":           {20 * time.Minute, hub, nil, loading, false, ""},
		"another zone":     {8 * time.Hour, hub, nil, loading, false, ""},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, func(p *corev1.Pod) {
			m := &p.Spec.Containers[0]
			m.Args, m.Env = c.args, c.env
			m.StartupProbe = &corev1.Probe{PeriodSeconds: 10, FailureThreshold: 900}
			p.Status.Conditions = nil
			s := corev1.ContainerStatus{Name: m.Name}
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: benchAgo(36 * time.Minute)}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		})
		b.event("Pod", "p", "Unhealthy", "Startup probe failed: connection refused")
		b.log("p", strings.ReplaceAll(c.log, "%s", benchAgo(c.ago).Format("01-02 15:04:05")))
		_, all := b.tell(t)
		if slices.ContainsFunc(all, func(f finding.Finding) bool { return f.ID == "wl.probe-failing" }) != c.found ||
			signed(all, xet) != (c.want == xet) || c.want != "" && !signed(all, c.want) {
			t.Errorf("%s: want %t, %q: %+v", name, c.found, c.want, all)
		}
	}
}

// TestControllerFails protects that an unknown error of a controller is reported if its object has no pods, and that a
// failing pod says more than the event that its revision failed.
func TestControllerFails(t *testing.T) {
	t.Parallel()
	often := func(e *corev1.Event) { e.Count = 17 }
	const unknown = "NIMService m failed, msg: no such thing"
	for name, c := range map[string]struct {
		b    *bench
		want string
	}{
		"no pod":       {newBench().event("NIMService", "m", "ReconcileFailed", unknown, often), "m has no pod"},
		"once":         {newBench().event("NIMService", "m", "ReconcileFailed", unknown), ""},
		"another kind": {newBench().event("Database", "m", "ReconcileFailed", unknown, often), ""},
		"its pod runs": {
			newBench().node("n", 1).pod("m-0", "n", 1).event("NIMService", "m", "ReconcileFailed", unknown, often), "",
		},
		"revision": {
			newBench().event("Configuration", "m", "LatestCreatedFailed", `Latest created revision "m-1" has failed`),
			"Knative gave up",
		},
		"revision of a crashing pod": {
			newBench().node("n", 1).pod("m-1", "n", 1, crashing(1, "Error")).event("Configuration", "m",
				"LatestCreatedFailed", `Latest created revision "m-1" has failed`), "",
		},
	} {
		_, all := c.b.tell(t)
		found := slices.ContainsFunc(all, func(f finding.Finding) bool {
			return f.ID == "wl.message" && (c.want == "" || strings.Contains(f.Title, c.want))
		})
		if found != (c.want != "") {
			t.Errorf("%s: want %q: %+v", name, c.want, all)
		}
	}
}

// TestVolcanoShares protects that a rejected pod with a share of a GPU is explained by the scheduler that does not
// assign shares.
func TestVolcanoShares(t *testing.T) {
	t.Parallel()
	const on = "plugins:\n- name: deviceshare\n  arguments:\n    deviceshare.VGPUEnable: true\n"
	for name, c := range map[string]struct{ scheduler, conf, want string }{
		"off":     {"volcano", "plugins:\n- name: gang\n", "volcano-vgpu-not-enabled"},
		"on":      {"volcano", on, "kubelet-device-plugin-died-in-allocate"},
		"default": {"default-scheduler", on, "volcano-vgpu-other-scheduler"},
	} {
		b := newBench().node("n", 0).pod("p", "n", 0, func(p *corev1.Pod) {
			p.Spec.SchedulerName = c.scheduler
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"volcano.sh/vgpu-number": pieces(1)}
			p.Status = corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
				Message: "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = error reading " +
					"from server: EOF",
			}
		})
		b.ConfigMaps = []corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "volcano-system", Name: "c"},
			Data:       map[string]string{"volcano-scheduler.conf": c.conf},
		}}
		if _, all := b.tell(t); !signed(all, c.want) {
			t.Errorf("%s: want %s: %+v", name, c.want, all)
		}
	}
}

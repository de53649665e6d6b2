package doctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAccessChecks covers refusals by the API server: quota, Pod Security, RBAC and webhooks. A refusal is not reported
// if a newer pod disproves it.
func TestAccessChecks(t *testing.T) {
	t.Parallel()
	refused := func(message string) *bench {
		return newBench().node("a", 2).event("ReplicaSet", "r", "FailedCreate", message)
	}
	quota := func(b *bench, spec, status corev1.ResourceList) *bench {
		b.ResourceQuotas = append(b.ResourceQuotas, corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{Hard: spec},
			Status: corev1.ResourceQuotaStatus{Hard: status, Used: status},
		})
		return b
	}
	daemonSet := func(b *bench) *bench {
		b.DaemonSets = append(b.DaemonSets, appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "nvidia-device-plugin-daemonset"},
			Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "nvidia-device-plugin-daemonset"}},
			}},
		})
		return b
	}
	const exceeded = `Error creating: pods "x-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2`
	const security = `Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged (container "c" must not set securityContext.privileged=true)`
	const devices = `, hostPath volumes (volumes "dev-shm", "kfd")`
	const noClass = `Error creating: pods "x-1" is forbidden: pod rejected: RuntimeClass "nvidia" not found`
	keyed := corev1.ResourceList{"requests.nvidia.com/gpu": pieces(2)}
	runBench(t, map[string]benchCase{
		"quota": {quota(refused(exceeded), keyed, keyed), "rbac.quota error", "used 2, hard 2"},
		"quota of old": {newBench().event("Job", "j", "FailedCreate", exceeded,
			func(e *corev1.Event) { e.LastTimestamp = benchAgo(2 * time.Hour) }), "", ""},
		"created since": {
			refused(exceeded).pod("p", "a", 1, owned("ReplicaSet", "r"), created(10*time.Second)), "", "",
		},
		"success since": {refused(exceeded).event("ReplicaSet", "r", "SuccessfulCreate",
			"Created pod: x", func(e *corev1.Event) { e.LastTimestamp = benchAgo(0) }), "", ""},
		"limit range": {
			refused(`pods "x" is forbidden: maximum nvidia.com/gpu usage per Container is 1, but limit is 2`),
			"rbac.quota error", "",
		},
		"key without effect": {
			quota(newBench(), gpus(2), nil), "rbac.quota warning", "requests.nvidia.com~1gpu",
		},
		"quota with room": {quota(newBench(), keyed, keyed), "", ""},
		"Pod Security": {daemonSet(newBench().node("a", 2)).event("DaemonSet",
			"nvidia-device-plugin-daemonset", "FailedCreate",
			security), "ns.podsecurity error", "Do not lower the level of a namespace that users can access"},
		"Pod Security, an app":  {refused(security), "ns.podsecurity warning", ""},
		"Pod Security, devices": {refused(security + devices), "ns.podsecurity error", "enforce=privileged (warn"},
		"Pod Security, other volumes": {
			refused(security + `, hostPath volumes (volume "hydride")`), "ns.podsecurity warning", "do not need them",
		},
		"Pod Security, beside GPU pods": {refused(security).pod("q", "a", 1), "ns.podsecurity warning", ""},
		"RBAC": {refused(
			`Error creating: pods is forbidden: User "system:serviceaccount:kube-system:x" cannot create resource "pods"`,
		).pod("q", "a", 1, owned("ReplicaSet", "r")), "wl.forbidden error", "role is missing"},
		"service account": {
			refused(
				`Error creating: pods "x" is forbidden: error looking up service account team/y: serviceaccount "y" not found`,
			),
			"wl.forbidden warning", "service account does not exist",
		},
		"no RuntimeClass": {refused(noClass), "", ""}, // rc.handler-mismatch tells it
		"webhook": {refused(
			`Error creating: Internal error occurred: failed calling webhook "x.y": nvidia.com/gpu context deadline exceeded`,
		), "wl.forbidden error", "webhook"},
		"in the log": {newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log(
			"p", `jobs.batch is forbidden: User "system:serviceaccount:team:default" cannot create resource "jobs"`,
		), "wl.forbidden error, wl.pod-failing error", "can-i --list"},
		"no events": {
			newBench().missing("api/events"),
			"ns.podsecurity unknown, rbac.quota unknown, wl.forbidden unknown, wl.probe-failing unknown, wl.volume unknown",
			"",
		},
	})
}

// TestRefusalsOfThePast verifies that a refusal for a ReplicaSet is no longer relevant if its Deployment has rolled out
// another one, or if the missing object exists now.
func TestRefusalsOfThePast(t *testing.T) {
	t.Parallel()
	const noClass = `Error creating: pods "x-1" is forbidden: pod rejected: RuntimeClass "nvidia" not found`
	refused := func(message string) *bench {
		return newBench().node("a", 2).event("ReplicaSet", "train-1", "FailedCreate", message)
	}
	there := refused(noClass).pod("q", "a", 1)
	there.RuntimeClasses = append(there.RuntimeClasses,
		nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"})
	for name, test := range map[string]struct {
		bench *bench
		want  string
	}{
		"it stands": {refused(noClass), "rc.handler-mismatch"},
		"another was rolled out": {
			refused(noClass).pod("p", "a", 1, owned("ReplicaSet", "train-2"), created(2*time.Hour)), "",
		},
		"of another Deployment": {
			refused(noClass).pod("p", "a", 1, owned("ReplicaSet", "serve-2"), created(2*time.Hour)),
			"rc.handler-mismatch",
		},
		"the class is there": {there, ""},
		"another was rolled out, and quota": {refused(`pods "x" is forbidden: exceeded quota: gpus`).pod("p", "a", 1,
			owned("ReplicaSet", "train-2"), created(2*time.Hour)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Examine(&test.bench.Snapshot, Options{Checks: []string{"rc.*", "wl.forbidden", "rbac.quota"}})
			var found []string
			for _, f := range report.Items {
				found = append(found, f.ID)
			}
			if got := strings.Join(found, " "); got != test.want {
				t.Errorf("found %q, want %q:\n%s", got, test.want, reportLines(report))
			}
		})
	}
}

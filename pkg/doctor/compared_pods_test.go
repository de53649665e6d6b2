package doctor

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestKeptOff verifies that another pod's anti-affinity is the cause only if it selects the pod, and that doctor does
// not suggest changing the anti-affinity of a rolling update.
func TestKeptOff(t *testing.T) {
	t.Parallel()
	const others, either = "scheduler-anti-affinity-of-others", "scheduler-pod-anti-affinity"
	shuns := func(term corev1.PodAffinityTerm) podChange {
		term.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"part-of": "llm"}}
		term.TopologyKey = corev1.LabelHostname
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			}}
		}
	}
	label := func(value string) podChange {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"part-of": value} }
	}
	for name, c := range map[string]struct {
		pod, other []podChange
		want       string
	}{
		"selects the pod": {[]podChange{label("llm")}, []podChange{shuns(corev1.PodAffinityTerm{})}, others},
		"selects others":  {[]podChange{label("db")}, []podChange{shuns(corev1.PodAffinityTerm{})}, either},
		"another namespace": {
			[]podChange{label("llm")}, []podChange{shuns(corev1.PodAffinityTerm{Namespaces: []string{"x"}})}, either,
		},
		"all namespaces": {[]podChange{label("llm")}, []podChange{
			shuns(corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}),
		}, others},
		"the same Deployment": {
			[]podChange{label("llm"), owned("ReplicaSet", "llm-6d9f7c8b54")},
			[]podChange{shuns(corev1.PodAffinityTerm{}), owned("ReplicaSet", "llm-7b5c59d6f8")}, either,
		},
	} {
		told := toldByScheduler("0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.")
		for gpus := range int64(2) {
			b := newBench().node("n", 4).pod("other", "n", 1, c.other...).pod("p", "", gpus, append(c.pod, told)...)
			if _, all := b.tell(t); !signed(all, c.want) && (gpus == 0 || c.want == others) {
				t.Errorf("%s, %d GPUs: want %s: %+v", name, gpus, c.want, all)
			}
		}
	}
}

// TestBeforeProxy verifies that a mesh is the cause only if its proxy starts after the init container and intercepts
// its connections.
func TestBeforeProxy(t *testing.T) {
	t.Parallel()
	always, istio := corev1.ContainerRestartPolicyAlways, int64(1337)
	for name, c := range map[string]struct {
		redirect string
		change   podChange
		want     bool
	}{
		"redirected by a CNI plugin": {"istio-validation", func(*corev1.Pod) {}, true},
		"redirected before":          {"istio-init", func(*corev1.Pod) {}, true},
		"redirected after": {"istio-init", func(p *corev1.Pod) {
			slices.Reverse(p.Spec.InitContainers)
			slices.Reverse(p.Status.InitContainerStatuses)
		}, false},
		"as the proxy's user": {"istio-validation", func(p *corev1.Pod) {
			p.Spec.InitContainers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &istio}
		}, false},
		"port excluded": {"istio-validation", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"traffic.sidecar.istio.io/excludeOutboundPorts": "5000"}
		}, false},
		"native sidecar": {"istio-validation", func(p *corev1.Pod) {
			proxy := p.Spec.Containers[1]
			proxy.RestartPolicy, p.Spec.Containers = &always, p.Spec.Containers[:1]
			p.Spec.InitContainers = append([]corev1.Container{proxy}, p.Spec.InitContainers...)
		}, false},
		"downloads": {"istio-validation", func(p *corev1.Pod) {
			p.Spec.InitContainers[1].Command = []string{"copy"}
		}, false},
		"just started": {"istio-validation", func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[1].State.Running.StartedAt = benchAgo(time.Minute)
		}, false},
	} {
		pod := func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"},
			}
			p.Spec.Containers = append(p.Spec.Containers,
				corev1.Container{Name: "istio-proxy", Image: "istio/proxyv2:1"})
			p.Spec.InitContainers = []corev1.Container{
				{Name: c.redirect, Image: "istio/proxyv2:1"},
				{Name: "check", Command: []string{"sh", "-c", "until wget http://llm:5000/v1/models; do sleep 9; done"}},
			}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{Name: c.redirect, State: exitedWith(0, "Completed")},
				{Name: "check", State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: benchAgo(50 * time.Minute)},
				}},
			}
		}
		b := newBench().node("n", 1).pod("p", "n", 1, pod, c.change)
		if _, all := b.tell(t); signed(all, "mesh-init-container-before-proxy") != c.want {
			t.Errorf("%s: the mesh is the cause: want %t: %+v", name, c.want, all)
		}
	}
}

// TestSidecarRunsOn verifies that a sidecar is reported only if all other containers in the job's pod completed some
// time ago.
func TestSidecarRunsOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change podChange
		want   bool
	}{
		"alone":            {func(*corev1.Pod) {}, true},
		"restarted always": {func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }, false},
		"the work goes on": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = p.Status.ContainerStatuses[1].State
		}, false},
		"the work failed": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated.ExitCode = 1
		}, false},
		"just done": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = benchAgo(time.Minute)
		}, false},
		"another sidecar": {func(p *corev1.Pod) {
			p.Spec.Containers[1].Name, p.Status.ContainerStatuses[1].Name = "logs", "logs"
			p.Spec.Containers[1].Image = "fluent-bit:3"
		}, false},
	} {
		pod := func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = append(p.Spec.Containers,
				corev1.Container{Name: "istio-proxy", Image: "istio/proxyv2:1"})
			p.Status.ContainerStatuses[0].State = exitedWith(0, "Completed")
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = benchAgo(time.Hour)
			runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: benchAgo(2 * time.Hour)}}
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses,
				corev1.ContainerStatus{Name: "istio-proxy", Ready: true, State: runs})
		}
		b := newBench().node("n", 1).pod("p", "n", 1, pod, c.change)
		_, all := b.tell(t)
		got := slices.ContainsFunc(all, func(f finding.Finding) bool { return f.ID == "wl.sidecar-runs-on" })
		if got != c.want {
			t.Errorf("%s: the sidecar is reported: %t, want %t: %+v", name, got, c.want, all)
		}
	}
}

// TestKernelOfOtherGPUs verifies that an old kernel log error about another vendor's GPU is not reported while the pods
// that use the GPU are healthy.
func TestKernelOfOtherGPUs(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "home-ops-11500-xe-guc-hang-use-i915.txtar"))
	for i := range c.snapshot.Pods {
		for j := range c.snapshot.Pods[i].Status.ContainerStatuses {
			c.snapshot.Pods[i].Status.ContainerStatuses[j].LastTerminationState = corev1.ContainerState{}
		}
	}
	if got := fieldRoots(Examine(c.snapshot, Options{})); len(got) > 0 {
		t.Errorf("the pods run well, and %v is reported", got)
	}
}

// TestWaitsForHead verifies that the DNS domain is the cause only if the cluster's domain differs, and that an init
// container is reported if it logs what it is waiting for, but not if it is downloading data.
func TestWaitsForHead(t *testing.T) {
	t.Parallel()
	const domain, head = "kuberay-other-cluster-domain", "ray-worker-waits-for-head"
	for name, c := range map[string]struct{ said, zone, want, not string }{
		"another domain":     {"wait for GCS to be ready", "app.pre in-addr.arpa", domain, head},
		"the usual domain":   {"9 seconds elapsed: Waiting for GCS to be ready", "cluster.local", head, domain},
		"no domain is known": {"wait for GCS to be ready", "", head, domain},
		"downloads":          {"model-00001 45%", "app.pre in-addr.arpa", "", domain},
	} {
		pod := func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"},
			}
			p.Spec.InitContainers = []corev1.Container{
				{Name: "wait-gcs-ready", Args: []string{"until ray health-check --address h.ray.svc.cluster.local:6379"}},
			}
			runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: benchAgo(50 * time.Minute)}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "wait-gcs-ready", State: runs}}
		}
		b := newBench().node("n", 1).pod("p", "n", 1, pod)
		b.Logs = []snapshot.Log{{
			Namespace: b.Pods[0].Namespace, Pod: "p", Container: "wait-gcs-ready", Text: c.said + "\n",
		}}
		b.ConfigMaps = []corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
			Data:       map[string]string{"Corefile": ".:53 {\n    kubernetes " + c.zone + " {\n    }\n}\n"},
		}}
		_, all := b.tell(t)
		if c.want != "" && !signed(all, c.want) || signed(all, c.not) || c.want == "" && signed(all, head) {
			t.Errorf("%s: want %q, not %q: %+v", name, c.want, c.not, all)
		}
	}
}

// TestLimitRange verifies that a LimitRange is blamed only for a limit that it set according to the pod's annotation.
func TestLimitRange(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]bool{
		"LimitRanger plugin set: cpu, memory limit for container main":                                      true,
		"LimitRanger plugin set: cpu, memory request for container main; memory limit for container main":   true,
		"LimitRanger plugin set: cpu limit for container main; cpu, memory limit for init container domain": false,
		"LimitRanger plugin set: cpu, memory request for container main":                                    false,
		"": false,
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, endedBadly(""), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/limit-ranger": set}
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("512Mi")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: exitedWith(137, "OOMKilled")}}
		})
		b.LimitRanges = []corev1.LimitRange{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "defaults"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Default: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
			}}},
		}}
		if _, all := b.tell(t); signed(all, "limit-range-default-memory") != want {
			t.Errorf("%q: the LimitRange is the cause: want %t: %+v", set, want, all)
		}
	}
}

// TestHandlerAwaitsDriver verifies that a missing handler is a consequence of the operator's driver if the toolkit is
// waiting for the driver before it adds the handler, even if the cause of the driver's failure is unknown.
func TestHandlerAwaitsDriver(t *testing.T) {
	t.Parallel()
	c := readField(t, filepath.Join("testdata", "field", "aicr-70-limitrange-kills-driver-build.txtar"))
	for i := range c.snapshot.Pods {
		for j := range c.snapshot.Pods[i].Status.ContainerStatuses {
			if last := c.snapshot.Pods[i].Status.ContainerStatuses[j].LastTerminationState.Terminated; last != nil {
				last.Reason, last.ExitCode = "Error", 1
			}
		}
	}
	report := Examine(c.snapshot, Options{})
	if got := fieldRoots(report); !slices.Equal(got, []string{"op.init-chain"}) {
		t.Errorf("the roots are %v\n%s", got, describe(report))
	}
}

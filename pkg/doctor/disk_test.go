package doctor

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func evicted(used string) podChange {
	return func(p *corev1.Pod) {
		endedBadly("Evicted")(p)
		p.CreationTimestamp = benchAgo(10 * time.Minute)
		p.Status.Message = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: " +
			"9Gi. Container main was using " + used + ", request is 0, has larger consumption of ephemeral-storage."
	}
}

func caches(size, path string) podChange {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Args = []string{"--tensor-parallel-size=8"}
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "LMCACHE_LOCAL_DISK", Value: "file://" + path}, {Name: "LMCACHE_MAX_LOCAL_DISK_SIZE", Value: size},
		}
		p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "cache"},
		}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/cache"}}
	}
}

// TestFilledDisk verifies that an evicted pod is the cause of a node's disk pressure only if it filled the disk.
func TestFilledDisk(t *testing.T) {
	t.Parallel()
	full := reports("DiskPressure", "KubeletHasDiskPressure", "kubelet has disk pressure", corev1.ConditionTrue)
	for name, c := range map[string]struct {
		pod       []podChange
		root      string
		signature string
	}{
		"most of the disk": {[]podChange{evicted("600Gi")}, "wl.evicted", "container-fills-disk-of-node"},
		"a few bytes":      {[]podChange{evicted("60Ki")}, "node.pressure", ""},
		"long ago":         {[]podChange{evicted("600Gi"), created(3 * time.Hour)}, "node.pressure", ""},
		"LMCache": {
			[]podChange{evicted("600Gi"), caches("110", "/tmp/cache")}, "wl.evicted", "lmcache-disk-size-per-worker",
		},
		"LMCache, small": {
			[]podChange{evicted("600Gi"), caches("10", "/tmp/cache")}, "wl.evicted", "container-fills-disk-of-node",
		},
		"LMCache, claim": {
			[]podChange{evicted("600Gi"), caches("110", "/cache/kv")}, "wl.evicted", "container-fills-disk-of-node",
		},
	} {
		b := newBench().node("n", 8, gives("ephemeral-storage", 900<<30, 900<<30), full).pod("p", "n", 8, c.pod...)
		var got []string
		for _, f := range Examine(&b.Snapshot, Options{}).Roots() {
			if f.Severity != "info" {
				got = append(got, f.ID+"/"+f.Signature)
			}
		}
		if !slices.Equal(got, []string{c.root + "/" + c.signature}) {
			t.Errorf("%s: the roots are %v", name, got)
		}
	}
}

// TestStoppedByKubelet verifies that a program that the kubelet stops is not reported as exiting by itself.
func TestStoppedByKubelet(t *testing.T) {
	t.Parallel()
	hook := func(command string) podChange {
		return func(p *corev1.Pod) {
			crashing(0, "Completed")(p)
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
				Exec: &corev1.ExecAction{Command: []string{"sh", "-c", command}},
			}}
		}
	}
	const failed = "FailedPostStartHook"
	for name, c := range map[string]struct {
		hook, event, message, signature string
		completes                       bool
	}{
		"by itself":   {"true", "BackOff", "Back-off restarting failed container", "", true},
		"probe":       {"true", "Killing", "Container main failed liveness probe, will be restarted", "", false},
		"hook":        {"nvidia-smi", failed, "", "post-start-hook-fails", false},
		"ollama":      {"ollama pull a", failed, "", "ollama-post-start-does-not-wait", false},
		"ollama wait": {"sleep 5; ollama pull a", failed, "", "post-start-hook-fails", false},
	} {
		b := newBench().node("n", 1).pod("p", "n", 1, hook(c.hook)).
			event("Pod", "p", c.event, cmp.Or(c.message, "PostStartHook failed"))
		got, all := b.tell(t)
		if completes := strings.Contains(strings.Join(got, " "), "wl.completes error"); completes != c.completes ||
			c.signature != "" && !signed(all, c.signature) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestVolumeOnNoNode verifies that a volume's affinity is reported as impossible only if no node matches it.
func TestVolumeOnNoNode(t *testing.T) {
	t.Parallel()
	const none, helper = "volume-on-no-node", "volume-made-before-its-helper"
	for name, c := range map[string]struct {
		host, want string
		makes      bool
	}{
		"a node":          {"n", "", false},
		"a removed node":  {"old", none, false},
		"not placed":      {"", helper, true},
		"of other volume": {"", none, false},
	} {
		b := newBench().node("n", 1, tainted("nvidia.com/gpu", "present")).pod("p", "", 1, func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			caches("1", "/cache")(p)
			p.Status.Conditions[0].Message = "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node " +
				"affinity."
		}).pod("helper", "", 0, func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"mkdir", "/data/pvc-2"}
			if c.makes {
				p.Spec.Containers[0].Command[1] = "/data/pvc-1"
			}
		})
		b.PersistentVolumes = []unstructured.Unstructured{{Object: map[string]any{
			"metadata": map[string]any{"name": "pvc-1"},
			"spec": map[string]any{
				"claimRef": map[string]any{"namespace": "team", "name": "cache"},
				"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{
					map[string]any{"matchExpressions": []any{map[string]any{
						"key": "kubernetes.io/hostname", "operator": "In", "values": []any{c.host},
					}}},
				}}},
			},
		}}}
		_, all := b.tell(t)
		for _, id := range []string{none, helper} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q: %+v", name, id, c.want, all)
			}
		}
	}
}

// TestUnrequestedGPU verifies that a pod that gets GPUs without a request counts as a GPU pod once it fails.
func TestUnrequestedGPU(t *testing.T) {
	t.Parallel()
	class := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("nvidia") }
	for name, c := range map[string]struct {
		pod  []podChange
		want bool
	}{
		"RuntimeClass":       {[]podChange{class, crashing(1, "Error")}, true},
		"RuntimeClass, runs": {[]podChange{class}, false},
		"hook": {[]podChange{cannotPull("RunContainerError",
			"error running prestart hook: nvidia-container-cli: initialization error: nvml error")}, true},
		"neither": {[]podChange{crashing(1, "Error")}, false},
	} {
		b := newBench().node("n", 1).pod("p", "n", 0, c.pod...)
		got, _ := b.tell(t)
		if strings.Contains(strings.Join(got, " "), "wl.pod-failing error") != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSelectedByKueue verifies that a selector is attributed to Kueue only if it is not in the Workload.
func TestSelectedByKueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, own, owner, want string
		runs                  bool
	}{
		"label of the flavor": {"example.com/gpu", "", "u-1", "kueue-flavor-selects-no-node", true},
		"label of Helm":       {"app.kubernetes.io/managed-by", "", "u-1", "kueue-flavor-has-labels-of-helm", true},
		"the user's own":      {"example.com/gpu", "example.com/gpu", "u-1", "", true},
		"other work":          {"example.com/gpu", "", "u-2", "", true},
		"a label of the node": {"kubernetes.io/arch", "", "u-1", "", true},
		"Helm, no Workload":   {"app.kubernetes.io/managed-by", "", "u-2", "kueue-flavor-has-labels-of-helm", true},
		"Helm, no Kueue":      {"app.kubernetes.io/managed-by", "", "u-2", "", false},
	} {
		b := newBench().node("n", 1).pod("p", "", 1, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "u-1"}}
			p.Spec.NodeSelector = map[string]string{c.key: "amd64", "disk": "ssd"}
		})
		if c.runs {
			b.pod("kueue-controller-manager-1", "n", 0)
		}
		own := map[string]any{"disk": "ssd"}
		if c.own != "" {
			own[c.own] = "amd64"
		}
		b.Queued = []unstructured.Unstructured{{Object: map[string]any{
			"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
			"metadata": map[string]any{"namespace": "team", "name": "job-job", "ownerReferences": []any{
				map[string]any{"kind": "Job", "name": "job", "uid": c.owner, "apiVersion": "batch/v1"},
			}},
			"spec": map[string]any{"podSets": []any{map[string]any{
				"name": "main", "template": map[string]any{"spec": map[string]any{"nodeSelector": own}},
			}}},
			"status": map[string]any{"admission": map[string]any{"podSetAssignments": []any{
				map[string]any{"name": "main", "flavors": map[string]any{"nvidia.com/gpu": "t4"}},
			}}},
		}}}
		_, all := b.tell(t)
		for _, id := range []string{"kueue-flavor-selects-no-node", "kueue-flavor-has-labels-of-helm"} {
			if signed(all, id) != (c.want == id) {
				t.Errorf("%s: %s: want %q", name, id, c.want)
			}
		}
	}
}

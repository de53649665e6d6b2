package cudashim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The rollout is over when all pods there should be carry the shim and have begun, also if they have crashed since, and
// no other of the same template runs. Pods of others do not count.
func TestRollout(t *testing.T) {
	t.Parallel()
	crashed := func(name string) *corev1.Pod {
		p := started(name)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
		},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
		return p
	}
	pending := func(name string) *corev1.Pod {
		p := started(name)
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes"},
		}}
		return p
	}
	old := func(name, owner string) *corev1.Pod {
		p := started(name)
		p.Spec.Volumes = nil
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID("uid-" + owner)},
		}
		return p
	}
	refused := started("refused") // by its kubelet
	refused.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "no GPU"}
	evicted := started("evicted")
	evicted.Status.Phase, evicted.Status.Reason = corev1.PodFailed, "Evicted"
	over := old("over", "web-1")
	over.Status.Phase = corev1.PodSucceeded
	for name, test := range map[string]struct {
		pods     []*corev1.Pod
		done     bool
		text     string
		problems string
	}{
		"all new": {
			[]*corev1.Pod{started("a"), started("b")}, true, "2 pods with the shim (2 started), 0 without", "",
		},
		"crashed":             {[]*corev1.Pod{started("a"), crashed("b")}, true, "2 started", ""},
		"crashed, an old one": {[]*corev1.Pod{started("a"), crashed("b"), old("c", "web-1")}, false, "1 without", ""},
		"too few":             {[]*corev1.Pod{started("a")}, false, "1 pod with the shim", ""},
		"an old one":          {[]*corev1.Pod{started("a"), started("b"), old("c", "web-1")}, false, "1 without", ""},
		"an old one, over":    {[]*corev1.Pod{started("a"), started("b"), over}, true, "0 without", ""},
		"somebody else's":     {[]*corev1.Pod{started("a"), started("b"), old("c", "other-1")}, true, "0 without", ""},
		"nobody's":            {[]*corev1.Pod{started("a"), started("b"), old("c", "gone")}, true, "0 without", ""},
		"one without a place": {
			[]*corev1.Pod{started("a"), pending("b")}, false, "1 started",
			`pod "b": Pending: Unschedulable: 0/2 nodes`,
		},
		"one not admitted": {[]*corev1.Pod{started("a"), started("b"), refused, evicted}, true,
			"2 pods with the shim (2 started",
			`pod "evicted" has terminated (Evicted) and is not counted;pod "refused" has terminated (UnexpectedAdmissionError: no GPU) and is not counted`},
		"none": {nil, false, "0 pods", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, strings.Replace(web, "replicas: 1", "replicas: 2", 1),
				strings.Replace(web, "name: web", "name: other", 1),
				`{kind: ReplicaSet, apiVersion: apps/v1, metadata: {name: web-1, namespace: team, `+
					owned("Deployment", "apps/v1", "web")+`}}`,
				`{kind: ReplicaSet, apiVersion: apps/v1, metadata: {name: other-1, namespace: team, `+
					owned("Deployment", "apps/v1", "other")+`}}`)
			for _, p := range test.pods {
				if err := w.client.Tracker().Add(p); err != nil {
					t.Fatal(err)
				}
			}
			found := w.find("deployment/web")
			_, d := injected(t, found, Selection{}, false)
			d.UID = string(found.Object.GetUID())
			r, err := w.cluster.Rollout(t.Context(), d)
			if err != nil || r.Done != test.done || r.Later || !strings.Contains(r.Text, test.text) ||
				strings.Join(r.Problems, ";") != test.problems {
				t.Errorf("%+v, %v", r, err)
			}
			if held, err := w.cluster.Wait(t.Context(), d, time.Millisecond, true, nil); r.Held &&
				(err != nil || !test.done && !strings.Contains(held.Text, "new ones are crashing")) {
				t.Errorf("waiting for a fault that makes pods crash: %+v, %v", held, err)
			}
			if r.Held != strings.Contains(name, "crashed") {
				t.Errorf("held: %v", r.Held)
			}
			if !test.done {
				_, err := w.cluster.Wait(t.Context(), d, time.Millisecond, false, nil)
				if err == nil || !strings.Contains(err.Error(), test.text) ||
					!strings.Contains(err.Error(), test.problems) {
					t.Errorf("waiting: %v", err)
				}
			}
		})
	}
}

// Of an object with several templates only pods of the changed ones must follow: they often have containers of the same
// name.
func TestPodsOfOtherTemplatesNeedNotFollow(t *testing.T) {
	t.Parallel()
	w := kind(t, "mpijob")
	with, d := injected(t, w, Selection{Services: []string{"Worker"}}, false)
	for image, want := range map[string]bool{"worker": true, "launcher": false} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: image, Image: "mpi"}}}}
		if got := with.madeFrom(p, d); got != want {
			t.Errorf("%s: %v", image, got)
		}
	}
}

// Only the pods that mount a run's ConfigMap are its pods; they are told to their kubelets, and what to run in them is
// known.
func TestPodsOfARun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mixed := started("b")
	mixed.Spec.Volumes[0].ConfigMap.Items = []corev1.KeyToPath{
		{Key: libraryKey("amd64"), Path: "x86_64/libgpufault.so"},
		{Key: libraryKey("arm64"), Path: "aarch64/libgpufault.so"},
	}
	mixed.Spec.Containers = []corev1.Container{
		{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: volumeLib, MountPath: LibraryDir}}}, {Name: "side"},
	}
	other := started("c")
	other.Spec.Volumes[0].ConfigMap.Name = Name("cuda-other")
	for _, p := range []*corev1.Pod{mixed, started("a"), other} {
		if err := w.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := w.cluster.Pods(t.Context(), "team", run)
	if err != nil || len(pods) != 2 || pods[0].Name != "a" || pods[1].Name != "b" {
		t.Fatalf("%v, %v", pods, err)
	}
	if got := fmt.Sprintf("%v %s %q", Carriers(&pods[1]), ExecPath(&pods[1], "arm64"), ExecPath(&pods[1],
		"riscv64")); got != `[main] /gpu-fault/lib/aarch64/libgpufault.so "/gpu-fault/lib/x86_64/libgpufault.so"` {
		t.Errorf("carriers and program: %s", got)
	}
	gone := pods[0]
	gone.Name = "gone"
	if err := Refresh(t.Context(), w.client, append(pods, gone), "stamp"); err != nil {
		t.Fatal(err)
	}
	after, err := w.client.CoreV1().Pods("team").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || after.Annotations["gpufault.dev/refreshed"] != "stamp" {
		t.Errorf("%v, %v", after.Annotations, err)
	}
}

// The libraries must be for the nodes that the pods may run on, and for no others.
func TestArchitectures(t *testing.T) {
	t.Parallel()
	node := func(name, os, arch string, gpu bool) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"kubernetes.io/arch": arch, "kubernetes.io/os": os, "slot": "5"},
		}}
		n.Status.NodeInfo = corev1.NodeSystemInfo{Architecture: arch, OperatingSystem: os}
		if gpu {
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		}
		return n
	}
	required := func(term string) string {
		return `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` +
			term + `]}}}, `
	}
	for spec, want := range map[string]string{
		``: "[amd64 arm64 s390x]",
		`nodeSelector: {kubernetes.io/arch: arm64}, `: "[arm64]",
		`nodeName: win, `:                         "only on Windows",
		`os: {name: windows}, `:                   "is for Windows",
		`nodeSelector: {kubernetes.io/arch: x}, `: "no node matches",
		required(
			`{matchExpressions: [{key: kubernetes.io/arch, operator: NotIn, values: [arm64, s390x]}]}`,
		): "[amd64]",
		required(
			`{matchFields: [{key: metadata.name, operator: In, values: [arm]}]}, {}`,
		): "[arm64]",
		required(
			`{matchExpressions: [{key: slot, operator: Gt, values: ["4"]}, {key: kubernetes.io/arch, operator: Exists}]}`,
		): "[amd64 arm64 s390x]",
		required(
			`{matchExpressions: [{key: slot, operator: Lt, values: ["4"]}]}`,
		): "no node matches",
		`gpu`: "[amd64]",
	} {
		w := newWorld(t, strings.NewReplacer("containers", strings.TrimSuffix(spec, "gpu")+"containers").Replace(web))
		for _, n := range []*corev1.Node{
			node("amd", "linux", "amd64", true), node("arm", "linux", "arm64", false),
			node("z", "linux", "s390x", false), node("win", "windows", "amd64", false),
		} {
			if err := w.client.Tracker().Add(n); err != nil {
				t.Fatal(err)
			}
		}
		found := w.find("deployment/web")
		chosen, err := found.Select(Selection{})
		if err != nil {
			t.Fatal(err)
		}
		chosen[0].Containers[0].GPU = spec == "gpu"
		archs, err := w.cluster.Architectures(t.Context(), found, chosen)
		got := fmt.Sprint(archs)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, not %s", spec, got, want)
		}
	}
}

// A Job's pods that are over have had the shim; those that never began have not.
func TestRolloutOfAJob(t *testing.T) {
	t.Parallel()
	failed, refused := started("failed"), started("refused")
	failed.Status.Phase = corev1.PodFailed
	refused.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfgpu"}
	for want, pods := range map[bool][]*corev1.Pod{true: {failed, refused}, false: {refused}} {
		w := newWorld(t, job(""))
		for _, p := range pods {
			if err := w.client.Tracker().Add(p.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		_, d := injected(t, w.find("job/train"), Selection{}, false)
		d.Name = "train"
		if r, err := w.cluster.Rollout(t.Context(), d); err != nil || r.Done != want || len(r.Problems) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestExecPathOfAnUnknownArchitecture(t *testing.T) {
	t.Parallel()
	p := started("a")
	p.Spec.Volumes[0].ConfigMap.Items = []corev1.KeyToPath{
		{Key: StateKey, Path: StateKey}, {Key: libraryKey("arm64"), Path: LibraryName},
	}
	if got := ExecPath(p, ""); got != Executable {
		t.Errorf("%q", got)
	}
	p.Spec.Volumes[0].ConfigMap.Items = p.Spec.Volumes[0].ConfigMap.Items[:1]
	if got := ExecPath(p, ""); got != "" {
		t.Errorf("without a library %q", got)
	}
}

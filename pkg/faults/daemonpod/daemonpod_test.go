package daemonpod

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const (
	node  = "gpu-1"
	runID = "xid-7k3f9q"
)

func daemonSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin", Namespace: "gpu", UID: "ds"},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"app": "plugin"}, Annotations: map[string]string{"a": "b"},
			},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{{Name: "first"}},
				PriorityClassName: "system-node-critical",
			},
		}},
	}
}

func ownPod(name string, now corev1.ConditionStatus) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpu", OwnerReferences: []metav1.OwnerReference{
			{Kind: kindDaemonSet, Name: "plugin", UID: "ds", Controller: &yes},
		}},
		Spec:   corev1.PodSpec{NodeName: node, Tolerations: []corev1.Toleration{{Key: "t"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: now}}},
	}
}

func nothing(*corev1.Pod, string) error { return nil }

// TestCopy protects what makes the copy safe: the controller does not see it before it waits on the node, and the
// kubelet ends it when the time is up.
func TestCopy(t *testing.T) {
	t.Parallel()
	r := &Replacement{
		Node: node, DaemonSet: daemonSet(), Original: ownPod("o", corev1.ConditionTrue), Image: "i", Add: nothing,
	}
	pod, err := r.copy(ledger.Run{ID: runID, Until: time.Now().Add(time.Hour)}, undo{Namespace: "gpu"})
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.OwnerReferences) > 0 || pod.Labels["app"] != "" || pod.Labels[ledger.LabelRun] != runID {
		t.Errorf("the controller would see it: labels %v, owners %v", pod.Labels, pod.OwnerReferences)
	}
	if s := pod.Spec.ActiveDeadlineSeconds; s == nil || *s < 3590 || *s > 3600 {
		t.Errorf("it ends after %v seconds, want an hour", s)
	}
	if pod.Spec.NodeName != node || len(pod.Spec.Tolerations) != 1 || pod.Annotations["a"] != "b" {
		t.Errorf("it is not as the original: %+v", pod)
	}
	if pod.Spec.PriorityClassName != "" {
		t.Errorf("the kubelet kills other pods of a full node for it: priority class %s", pod.Spec.PriorityClassName)
	}
	if c := pod.Spec.InitContainers; len(c) != 2 || c[0].Name != gateName || c[1].Name != "first" {
		t.Errorf("the gate is not the first of its init containers: %+v", c)
	}
	if len(r.DaemonSet.Spec.Template.Spec.InitContainers) != 1 || len(r.DaemonSet.Spec.Template.Annotations) != 1 {
		t.Error("the DaemonSet itself was changed")
	}
}

// TestGate runs the command of the gate: it opens when the copy may start. Nobody opens it for a copy that is not the
// DaemonSet's, as after the death of the client, because two device plugins on a node would lose the devices of both.
func TestGate(t *testing.T) {
	t.Parallel()
	var spec corev1.PodSpec
	addGate(&spec, "i", corev1.PullNever, 60)
	dir := t.TempDir()
	script := strings.ReplaceAll(spec.InitContainers[0].Command[2], gateDir, dir)
	script = strings.ReplaceAll(script, "-ge 600", "-ge 3")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return exec.CommandContext(ctx, "sh", "-c", script).Run() == nil
	}
	write("owned", "")
	write("start", "")
	if run(2 * time.Second) {
		t.Error("it opened by itself for a pod that is not the DaemonSet's")
	}
	write("owned", "true")
	if !run(time.Minute) {
		t.Error("it did not open by itself for the pod of the DaemonSet")
	}
	write("owned", "")
	write("start", "now")
	if !run(time.Minute) {
		t.Error("it did not open")
	}
}

// step returns the step of a record with this undo.
func step(t *testing.T, u undo) ledger.Step {
	t.Helper()
	text, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Step{
		Target: ledger.Target{Kind: "Node", Name: node}, Undo: ledger.Undo{Kind: UndoKind, Data: text},
	}
}

// TestUndo: a record deletes only the pod that its own run made on the node of the step, whoever wrote the record.
func TestUndo(t *testing.T) {
	t.Parallel()
	good := undo{
		Namespace: "gpu", Pod: nameOf(runID, node), DaemonSet: "plugin", UID: "ds",
		Devices: Devices{"nvidia.com/gpu": 2},
	}
	copied := func(mark string) *corev1.Pod {
		pod := ownPod(good.Pod, corev1.ConditionTrue)
		pod.Annotations = map[string]string{annotationSeal: mark}
		return pod
	}
	sealed := copied(good.mark(runID, node))
	known := good
	known.PodUID = "copy"
	bare := copied("")
	bare.OwnerReferences = nil
	stripped := bare.DeepCopy()
	stripped.UID, stripped.Annotations = "copy", nil
	posing := stripped.DeepCopy()
	addGate(&stripped.Spec, "i", corev1.PullNever, 60)
	now := metav1.Now()
	stuck := copied(good.mark(runID, node))
	stuck.DeletionTimestamp, stuck.Finalizers, stuck.Status.Phase = &now, []string{"example.com/x"}, corev1.PodFailed
	other := good
	other.Pod = "victim"
	foreign := good
	foreign.Namespace = "../x"
	tainted := good
	tainted.DRA = true
	for name, test := range map[string]struct {
		undo    undo
		objects []runtime.Object
		said    string // of the result, or of the error
		deleted bool
	}{
		"the copy":                {good, []runtime.Object{sealed}, "belongs to daemonset.apps/plugin again", true},
		"not ours":                {good, []runtime.Object{copied("forged")}, "was not created by this run", false},
		"stripped of its marks":   {known, []runtime.Object{stripped}, "belongs to daemonset.apps/plugin again", true},
		"another without a gate":  {known, []runtime.Object{posing}, "was not created by this run", false},
		"stripped, UID not known": {good, []runtime.Object{stripped}, "was not created by this run", false},
		"another pod of its name": {known, []runtime.Object{bare}, "no longer exists; pod own belongs to", false},
		"a forged UID":            {known, []runtime.Object{sealed}, "belongs to daemonset.apps/plugin again", true},
		"a finalizer":             {good, []runtime.Object{stuck}, "its finalizers example.com/x; pod own belongs to", false},
		"a taint":                 {good, []runtime.Object{sealed}, "no longer has a pod on the node", true},
		"a cordon":                {good, []runtime.Object{sealed}, "belongs to daemonset.apps/plugin again", true},
		"another nodeSelector":    {good, []runtime.Object{sealed}, "no longer has a pod on the node", true},
		"another pod":             {other, []runtime.Object{sealed}, "is not the pod that the run creates", false},
		"no namespace":            {foreign, []runtime.Object{sealed}, "no DaemonSet is specified", false},
		"gone already":            {good, nil, "the copy no longer exists", false},
		"without DaemonSet":       {good, []runtime.Object{sealed}, "no longer has a pod on the node", true},
		"another's of a name":     {good, []runtime.Object{sealed}, "no longer has a pod on the node", true},
		"a DRA driver":            {tainted, []runtime.Object{sealed}, "belongs to daemonset.apps/plugin again", true},
		"no right to read taints": {tainted, []runtime.Object{sealed}, "again, but list the ResourceSlices", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := ownPod("own", corev1.ConditionTrue)
			on := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{Allocatable: gpus("2")},
			}
			objects := append(test.objects, on)
			switch ds := daemonSet(); name {
			case "a taint":
				on.Spec.Taints = []corev1.Taint{{Key: "maint", Effect: corev1.TaintEffectNoExecute}}
				objects = append(objects, ds)
			case "another nodeSelector":
				ds.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "no"}
				objects = append(objects, ds)
			case "a cordon":
				cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
				on.Spec.Taints = []corev1.Taint{cordoned}
				objects = append(objects, ds, own)
			case "without DaemonSet":
			case "another's of a name":
				ds.UID = "new"
				objects = append(objects, ds)
			default:
				objects = append(objects, ds, own)
			}
			client := fake.NewClientset(objects...)
			if name == "no right to read taints" {
				forbidden := apierrors.NewForbidden(resourcev1.Resource("resourceslices"), "", nil)
				client.PrependReactor("list", "resourceslices",
					func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
			}
			if name == "a finalizer" {
				client.PrependReactor("delete", "pods",
					func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
			}
			state, said, err := Undoer{Client: client}.Undo(t.Context(), ledger.Run{ID: runID}, step(t, test.undo))
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, test.said) {
				t.Errorf("it said %q, %q; want %q", state, said, test.said)
			}
			_, err = client.CoreV1().Pods("gpu").Get(t.Context(), good.Pod, metav1.GetOptions{})
			if deleted := apierrors.IsNotFound(err); deleted != test.deleted && len(test.objects) > 0 {
				t.Errorf("deleted: %t, want %t", deleted, test.deleted)
			}
		})
	}
}

func gpus(n string) corev1.ResourceList {
	return corev1.ResourceList{"nvidia.com/gpu": quantity(n), "cpu": quantity("4")}
}

// TestCheck: what a copy could not replace is refused before anything is changed.
func TestCheck(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Replacement){
		"is being updated": func(r *Replacement) { r.DaemonSet.Status.CurrentNumberScheduled = 2 },
		"is not ready":     func(r *Replacement) { r.Original = ownPod("o", corev1.ConditionFalse) },
		"uses host port 9400": func(r *Replacement) {
			r.Original.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 9400}}}}
		},
	} {
		r := &Replacement{
			Client: fake.NewClientset(), Node: node, DaemonSet: daemonSet(),
			Original: ownPod("o", corev1.ConditionTrue), Add: nothing,
		}
		if err := r.Check(t.Context()); err != nil {
			t.Errorf("a healthy pod is refused: %v", err)
		}
		change(r)
		if err := r.Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestReplacedMeanwhile: a successor of the original would be older than the copy. Nothing is created.
func TestReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	successor := ownPod("o", corev1.ConditionTrue)
	successor.UID = "new"
	for name, objects := range map[string][]runtime.Object{"gone": nil, "of the same name": {successor}} {
		client := fake.NewClientset(objects...)
		r := &Replacement{
			Client: client, Node: node, DaemonSet: daemonSet(), Add: nothing,
			Original: ownPod("o", corev1.ConditionTrue),
		}
		_, err := r.Change("").Apply(t.Context(), recorder{})
		if err == nil || !strings.Contains(err.Error(), "was replaced since the command started") {
			t.Errorf("%s: %v", name, err)
		}
		for _, action := range client.Actions() {
			if action.GetVerb() != "get" {
				t.Errorf("%s: %s %s", name, action.GetVerb(), action.GetResource().Resource)
			}
		}
	}
}

// recorder is a fault.Recorder of a change that never begins.
type recorder struct{}

func (recorder) Run() ledger.Run                                { return ledger.Run{ID: runID} }
func (recorder) Save(context.Context, func(*ledger.Step)) error { panic("nothing must be recorded") }
func (recorder) Progress(string)                                {}

// TestAdoptedFirst: the copy is the DaemonSet's pod before the original has terminated, and may start only after that.
// Otherwise, the DaemonSet's controller would start a pod of its own in the meantime.
func TestAdoptedFirst(t *testing.T) {
	t.Parallel()
	original := ownPod("o", corev1.ConditionTrue)
	original.UID = "original"
	r := &Replacement{Node: node, DaemonSet: daemonSet(), Original: original, Add: nothing}
	pod, err := r.copy(ledger.Run{ID: runID}, undo{Namespace: "gpu"})
	if err != nil {
		t.Fatal(err)
	}
	pod.UID = "copy"
	client := fake.NewClientset(original, pod)
	r.Client = client
	var done []string
	client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		done = append(done, "deleted")
		return true, nil, nil // it terminates slowly
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		text := string(action.(clienttesting.PatchAction).GetPatch())
		switch {
		case strings.Contains(text, annotationStart):
			done = append(done, "started")
		case strings.Contains(text, annotationOwned) && strings.Contains(text, `"uid":"ds"`):
			done = append(done, "adopted")
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			if err := client.Tracker().Delete(pods, "gpu", "o"); err != nil {
				t.Error(err)
			}
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := r.takeOver(ctx, pod, time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(done, " "); got != "deleted adopted started" {
		t.Errorf("the order is %q", got)
	}
}

// TestGateOutlastsTheOriginal: the copy of a killed client must not start while the original terminates.
func TestGateOutlastsTheOriginal(t *testing.T) {
	t.Parallel()
	original := ownPod("o", corev1.ConditionTrue)
	for want, grace := range map[string]*int64{"-ge 900 ": nil, "-ge 3600 ": new(int64(300))} {
		original.Spec.TerminationGracePeriodSeconds = grace
		r := &Replacement{Node: node, DaemonSet: daemonSet(), Original: original, Add: nothing}
		pod, err := r.copy(ledger.Run{ID: runID}, undo{})
		if err != nil {
			t.Fatal(err)
		}
		if command := pod.Spec.InitContainers[0].Command[2]; !strings.Contains(command, want) {
			t.Errorf("%s: %s", want, command)
		}
	}
}

// TestReaction: only resources that had more devices before count, and only taints that a device did not have.
func TestReaction(t *testing.T) {
	t.Parallel()
	on := node
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.nvidia.com", NodeName: &on, Pool: resourcev1.ResourcePool{Name: node, Generation: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1", Taints: []resourcev1.DeviceTaint{
				{Key: "old", Effect: resourcev1.DeviceTaintEffectNone},
				{Key: "xid", Value: "48", Effect: resourcev1.DeviceTaintEffectNoSchedule},
			}}},
		},
	}
	client := fake.NewClientset(slice, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{Allocatable: gpus("1")},
	})
	const device = "gpu.nvidia.com/gpu-1/gpu-1"
	before := Published{"gpu.nvidia.com/gpu-1/gpu-0", device, device + " has taint old:None"}
	one, two := Devices{"nvidia.com/gpu": 1}, Devices{"nvidia.com/gpu": 2, "amd.com/gpu": 0}
	const taint = "device " + device + " has taint xid=48:NoSchedule"
	for want, test := range map[string]Copy{
		"allocatable nvidia.com/gpu 2 -> 1": {Devices: two},
		taint:                               {Devices: one, DRA: true},
		"allocatable nvidia.com/gpu 2 -> 1;" + taint: {Devices: two, DRA: true},
		"": {Devices: one},
	} {
		test.Client, test.Pod = client, ownPod("o", corev1.ConditionTrue)
		changed, err := test.Reaction(t.Context(), before, time.Millisecond)
		if got := strings.Join(changed, ";"); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if err := (Devices{"nvidia.com/gpu": 1}).await(t.Context(), client, node); err != nil {
		t.Error(err)
	}
	same, err := published(t.Context(), client, node)
	if err != nil || same.await(t.Context(), client, node) != nil {
		t.Errorf("%v, %v", same, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := before.await(ctx, client, node); err == nil {
		t.Error("a taint that came with the fault is not awaited to go")
	}
}

// TestPublishedMissing: all devices must be published again, without new taints.
func TestPublishedMissing(t *testing.T) {
	t.Parallel()
	was := Published{"d/n/gpu-0", "d/n/gpu-0 has taint old:None", "d/n/gpu-1"}
	got := was.missing(Published{"d/n/gpu-0", "d/n/gpu-0 has taint new:NoSchedule"})
	if strings.Join(got, "; ") != "device d/n/gpu-0 has taint new:NoSchedule; device d/n/gpu-1 is not published" {
		t.Error(got)
	}
	if got := was.missing(Published{"d/n/gpu-0", "d/n/gpu-1", "d/n/gpu-2"}); len(got) > 0 {
		t.Error(got)
	}
	if got := was.taints(); len(got) != 1 || got[0] != "d/n/gpu-0 has taint old:None" {
		t.Error(got)
	}
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

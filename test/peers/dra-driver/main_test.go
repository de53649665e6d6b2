package main

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"
)

// driverPod returns a pod of the driver that is ready.
func driverPod(name, node string, copied bool) corev1.Pod {
	yes := true
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: daemonSet, Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: container, ContainerID: "id-" + name,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
	if copied {
		pod.Spec.InitContainers = []corev1.Container{{Name: "gpu-fault-gate"}}
	}
	return pod
}

func TestSettled(t *testing.T) {
	deleted, starting, free := driverPod("d", faulty, true), driverPod("s", faulty, true), driverPod("f", faulty, true)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	starting.Status.Conditions = nil
	free.OwnerReferences = nil
	neighbor := driverPod("n", other, false)
	for name, test := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"both": {[]corev1.Pod{driverPod("c", faulty, true), neighbor}, ""},
		"one":  {[]corev1.Pod{driverPod("c", faulty, true)}, "not every node"},
		"two on one": {
			[]corev1.Pod{driverPod("c", faulty, true), driverPod("e", faulty, true), neighbor}, "not every node",
		},
		"the original":    {[]corev1.Pod{driverPod("o", faulty, false), neighbor}, "is a copy: false"},
		"a copy too many": {[]corev1.Pod{driverPod("c", faulty, true), driverPod("x", other, true)}, "is a copy: true"},
		"deleted":         {[]corev1.Pod{deleted, neighbor}, "being deleted"},
		"starting":        {[]corev1.Pod{starting, neighbor}, "not ready"},
		"not adopted":     {[]corev1.Pod{free, neighbor}, "not the DaemonSet's"},
	} {
		_, err := settled(test.pods, true)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// Two drivers at the same time are not missed, even if one of them has ended when the next step looks.
func TestHistoryOfPods(t *testing.T) {
	var h history
	original, copied := driverPod("o", faulty, false), driverPod("c", faulty, true)
	h.pod(watch.Added, &original)
	h.pod(watch.Deleted, &original)
	h.pod(watch.Added, &copied)
	if err := h.calm(); err != nil || h.drivers() != 2 || h.ended.IsZero() || !h.ready.After(h.ended) {
		t.Errorf("%v, %d drivers, ended %v, ready %v", err, h.drivers(), h.ended, h.ready)
	}
	h.pod(watch.Added, &original)
	h.pod(watch.Deleted, &original)
	if h.calm() == nil {
		t.Error("two drivers have run at the same time")
	}
}

func TestHistoryOfSlices(t *testing.T) {
	var h history
	node, uuid := faulty, "GPU-1"
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"},
		Spec: resourcev1.ResourceSliceSpec{NodeName: &node, Devices: []resourcev1.Device{{
			Name:       "gpu-0",
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &uuid}},
		}}},
	}
	h.slice(watch.Added, slice)
	first := h.of(node)
	slice.ResourceVersion = "2"
	h.slice(watch.Modified, slice)
	if now := h.of(node); now.since != first.since || now.version != "2" {
		t.Errorf("%+v, then %+v", first, now)
	}
	slice.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "a", Effect: resourcev1.DeviceTaintEffectNone}}
	h.slice(watch.Modified, slice)
	if now := h.of(node); !now.since.After(first.since) || strings.Join(now.taints[uuid], " ") != "a:None" {
		t.Errorf("%+v", now)
	}
	if h.slice(watch.Deleted, slice); h.calm() == nil {
		t.Error("the slice has vanished")
	}
}

func TestSameRun(t *testing.T) {
	before, restarted := driverPod("p", faulty, false), driverPod("p", faulty, false)
	replaced := driverPod("p", faulty, false)
	restarted.Status.ContainerStatuses[0].RestartCount++
	replaced.UID = "new"
	if err := sameRun(&before, &before); err != nil {
		t.Error(err)
	}
	for _, now := range []corev1.Pod{restarted, replaced} {
		if sameRun(&before, &now) == nil {
			t.Errorf("a restart was not noticed: %v", now)
		}
	}
}

// The steps name different things, and the manifest has the DaemonSet that the faults name.
func TestSteps(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range steps() {
		if seen[s.name] || s.do == nil {
			t.Errorf("step %q", s.name)
		}
		seen[s.name] = true
	}
	if want := 5 + 3*len(faults); len(seen) != want {
		t.Errorf("%d steps, want %d", len(seen), want)
	}
	parts := strings.Split(manifest, "\n---\n")
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(parts[len(parts)-1]), &set); err != nil {
		t.Fatal(err)
	}
	c := set.Spec.Template.Spec.Containers[0]
	if set.Name != daemonSet || set.Namespace != namespace || c.Name != container || c.Image != "@IMAGE@" {
		t.Errorf("%s/%s: container %s with the image %s", set.Namespace, set.Name, c.Name, c.Image)
	}
}

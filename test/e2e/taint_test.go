//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// published is a DRA driver of which there are only ResourceSlices. The scheduler allocates its devices; pods that get
// one stay in ContainerCreating, because no kubelet plugin prepares it.
type published struct {
	*env
	driver, namespace string
}

// publish publishes gpu-0 and gpu-1 for the worker.
func (e *env) publish() *published {
	e.t.Helper()
	p := &published{env: e, namespace: e.cluster.Namespace(e.t)}
	p.driver = p.namespace + ".example.com"
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", p.driver)},
		}}},
	}
	api := e.cluster.Client.ResourceV1()
	if _, err := api.DeviceClasses().Create(e.t.Context(), class, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		e.drop(api.DeviceClasses(), p.driver)
		e.drop(api.ResourceSlices(), p.driver)
	})
	p.slice()
	return p
}

// slice creates the ResourceSlice unless it exists: a kubelet that has just started deletes those of unknown drivers.
func (p *published) slice() {
	p.t.Helper()
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: p.driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: p.driver, NodeName: &p.worker.Name,
			Pool:    resourcev1.ResourcePool{Name: p.worker.Name, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
		},
	}
	if _, err := p.cluster.Client.ResourceV1().ResourceSlices().Create(
		p.t.Context(), slice, metav1.CreateOptions{},
	); err != nil && !apierrors.IsAlreadyExists(err) {
		p.t.Fatal(err)
	}
}

// claims creates a pod with a ResourceClaim for one device.
func (p *published) claims(name string) {
	p.t.Helper()
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: p.driver},
		}}}},
	}
	if _, err := p.cluster.Client.ResourceV1().ResourceClaims(p.namespace).Create(
		p.t.Context(), claim, metav1.CreateOptions{},
	); err != nil {
		p.t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{
				{
					Name:            "c",
					Image:           "busybox:1.35",
					ImagePullPolicy: corev1.PullNever,
					Command:         []string{"sleep", "1000"},
					Resources:       corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
				},
			},
		},
	}
	if _, err := p.cluster.Client.CoreV1().Pods(p.namespace).Create(
		p.t.Context(), pod, metav1.CreateOptions{},
	); err != nil {
		p.t.Fatal(err)
	}
}

// device returns the device that a pod with a claim of the same name has got; empty if none.
func (p *published) device(name string) string {
	p.t.Helper()
	claim, err := p.cluster.Client.ResourceV1().ResourceClaims(p.namespace).Get(
		p.t.Context(), name, metav1.GetOptions{},
	)
	if err != nil {
		p.t.Fatal(err)
	}
	if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return ""
	}
	return claim.Status.Allocation.Devices.Results[0].Device
}

func (p *published) gets(name string) string {
	p.t.Helper()
	var got string
	cluster.Eventually(p.t, patience, "pod "+name+" gets a device", func() (bool, string) {
		p.slice()
		got = p.device(name)
		return got != "", "none"
	})
	return got
}

// rules returns the names of the DeviceTaintRules.
func (p *published) rules() string {
	p.t.Helper()
	return strings.TrimSpace(p.kubectl("get", "devicetaintrules", "-o", "name"))
}

// The scheduler leaves out a device with a taint, and Kubernetes evicts a pod from it; after the revert, the device is
// allocated again.
func TestTaintedDevices(t *testing.T) {
	p := setup(t).publish()
	t.Cleanup(func() { p.plugin("revert", "--all", "--yes") })
	p.claims("first")
	held := p.gets("first")
	free := map[string]string{"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[held]
	taint := func(device, taint string) string {
		r := p.ok("device", "taint", p.worker.Name, "--device", device, "--driver", p.driver, "--taint", taint,
			"--allow-majority", "--yes", "-o", "name")
		return strings.TrimPrefix(strings.TrimSpace(r.stdout), "run/")
	}
	run := taint(free, "lost:NoSchedule")
	if rules := p.rules(); strings.Count(rules, "\n") != 0 || !strings.Contains(rules, free) {
		t.Errorf("the rules are %q", rules)
	}
	if text := fmt.Sprint(p.runs()[0].Steps[0].Evidence); !strings.Contains(text, "taint lost:NoSchedule") ||
		!strings.Contains(text, "EvictionInProgress=False") {
		t.Errorf("evidence: %s", text)
	}
	p.claims("second")
	cluster.Eventually(t, patience, "the second pod gets no device", func() (bool, string) {
		pod, err := p.cluster.Client.CoreV1().Pods(p.namespace).Get(t.Context(), "second", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return true, c.Message
			}
		}
		return false, fmt.Sprint(pod.Status.Conditions)
	})
	p.ok("revert", run, "--yes")
	if got := p.gets("second"); got != free {
		t.Errorf("the second pod has %s, not %s", got, free)
	}

	dry := p.ok("device", "taint", p.worker.Name, "--device", held, "--driver", p.driver, "--taint", "lost:NoExecute",
		"--allow-majority", "--dry-run=server")
	if !strings.Contains(dry.stderr, "deletes the pods that hold the devices: "+p.namespace+"/first") {
		t.Errorf("the dry run does not say which pods are evicted:\n%s", dry.stderr)
	}
	run = taint(held, "lost:NoExecute")
	if text := fmt.Sprint(p.runs()[0].Steps[0].Evidence); !strings.Contains(text, p.namespace+"/first") {
		t.Errorf("evidence: %s", text)
	}
	cluster.Eventually(t, patience, "the first pod is gone", func() (bool, string) {
		_, err := p.cluster.Client.CoreV1().Pods(p.namespace).Get(t.Context(), "first", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	p.ok("revert", run, "--yes")
	if rules := p.rules(); rules != "" {
		t.Errorf("rules are left: %s", rules)
	}
	p.noPods()
}

// What cannot be tainted is refused, with what there is, before anything is changed.
func TestTaintRefused(t *testing.T) {
	p := setup(t).publish()
	for args, want := range map[string]string{
		p.worker.Name + " --device gpu-7":                                "the devices are: gpu-0, gpu-1",
		p.worker.Name + " --device gpu-0 --driver none":                  p.driver,
		p.control.Name + " --device gpu-0":                               "no DRA driver has published devices",
		"nowhere --device gpu-0":                                         "no DRA driver has published devices",
		p.worker.Name + " --device gpu-0 --taint a=b:Never":              "supported effects",
		p.worker.Name + " --device gpu-0 --taint no/such/key:NoSchedule": "taint",
		p.worker.Name + " --device gpu-0 --ttl 48h":                      "--ttl",
	} {
		p.slice()
		r := p.plugin(
			append(append([]string{"device", "taint"}, strings.Fields(args)...), "--allow-majority", "--yes")...)
		p.mustSay(r, 1, want)
	}
	p.untouched()
	if rules := p.rules(); rules != "" {
		t.Errorf("rules were created: %s", rules)
	}
}

func (r *rights) taintPrepare() { r.publish() }

func (r *rights) taintWorks() {
	p := r.publish()
	run := strings.TrimPrefix(
		strings.TrimSpace(r.does("device", "taint", r.worker.Name, "--device", "gpu-0", "--driver",
			p.driver, "--allow-majority", "--yes", "-o", "name")),
		"run/",
	)
	r.does("revert", run, "--yes")
	if rules := p.rules(); rules != "" {
		r.t.Errorf("rules are left: %s", rules)
	}
}

func (r *rights) taintAsks(rule fault.Permission) [][]string {
	if rule.Resource == "pods" && rule.Verb == "get" {
		return [][]string{{"device", "taint", "--pod", "nobody", "--dry-run=server"}}
	}
	return [][]string{{"device", "taint", r.worker.Name, "--device", "gpu-0", "--allow-majority", "--dry-run=server"}}
}

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func probeCheck(within time.Duration, expect string) scenario.Check {
	return scenario.Check{Within: scenario.Duration(within), Expect: expect,
		Probe: &scenario.Probe{Pod: scenario.Object{
			"metadata": map[string]any{"name": "step", "namespace": "a"},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main"}}},
		}}}
}

func unschedulable(age time.Duration) corev1.PodStatus {
	s := phase(corev1.PodPending)
	if age >= time.Second {
		s.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/2 nodes are available",
		}}
	}
	return s
}

// When a probe's pod is judged, and that none is left: what is not yet decided must not pass for what was expected.
func TestProbe(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, test := range map[string]struct {
		status      func(n int, age time.Duration) corev1.PodStatus
		within      time.Duration
		expect      string
		ok          bool
		made        int
		least, most time.Duration
		saw, why    string
	}{
		"ends well": {func(_ int, age time.Duration) corev1.PodStatus {
			if age < 3*s {
				return phase(corev1.PodPending)
			}
			return phase(corev1.PodSucceeded, terminated(0))
		}, 30 * s, `o.status.phase == "Succeeded" && text == "fake logs"`, true, 1, 3 * s, 5 * s, "fake logs", ""},
		"ends well the third time": {func(n int, _ time.Duration) corev1.PodStatus {
			return phase(map[bool]corev1.PodPhase{true: corev1.PodSucceeded, false: corev1.PodFailed}[n == 3],
				terminated(0))
		}, 30 * s, `o.status.phase == "Succeeded"`, true, 3, 0, 5 * s, "", ""},
		"is not scheduled, as expected": {func(_ int, age time.Duration) corev1.PodStatus { return unschedulable(age) },
			30 * s, `!has(o.spec.nodeName)`, true, 1, s, 3 * s, "Unschedulable: 0/2 nodes are available", ""},
		"is not scheduled": {func(_ int, age time.Duration) corev1.PodStatus { return unschedulable(age) },
			10 * s, `o.status.phase == "Running"`, false, 1, 10 * s, 11 * s, "Unschedulable", "expected o.status"},
		"is on its way for ever": {func(int, time.Duration) corev1.PodStatus {
			return phase(corev1.PodPending, waiting("ContainerCreating"))
		},
			10 * s, `o.status.phase == "Pending"`, true, 1, 10 * s, 11 * s, "ContainerCreating", ""},
		"time when none is given": {func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodPending) },
			0, `o.status.phase == "Running"`, false, 1, 30 * s, 31 * s, "Pending", ""},
		"runs": {func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) },
			30 * s, `o.status.phase == "Running"`, true, 1, 0, s, "", ""},
		"gets no image": {func(int, time.Duration) corev1.PodStatus {
			return phase(corev1.PodPending, waiting("ErrImagePull"))
		},
			30 * s, `o.status.containerStatuses[0].state.waiting.reason == "ErrImagePull"`, true, 1, 0, s, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				made := w.node(test.status)
				r := w.one(t, probeCheck(test.within, test.expect))
				if r.OK != test.ok || len(made()) != test.made || r.Took < test.least || r.Took > test.most ||
					!strings.Contains(r.Saw, test.saw) || !strings.Contains(r.Message, test.why) {
					t.Errorf("%+v; %d pods", r, len(made()))
				}
				for _, name := range made() {
					if !strings.HasPrefix(name, "step-") || len(name) != len("step-")+8 {
						t.Errorf("name %s", name)
					}
				}
				if left := w.left(t); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// A pod that the API server refuses is an answer, with null for the pod, so that nothing of it can be mistaken.
func TestProbeRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var changes time.Time
		refusal := func() error {
			if time.Now().Before(changes) {
				return errors.New(`error looking up service account a/default: serviceaccount "default" not found`)
			}
			return errors.New("exceeded quota: gpus")
		}
		w.dynamic.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", refusal())
		})
		if r := w.one(t, probeCheck(0, `o == null && text.contains("exceeded quota")`)); !r.OK || r.Took > time.Second {
			t.Errorf("%+v", r)
		}
		if r := w.one(t, probeCheck(5*time.Second, `!has(o.spec.nodeName)`)); r.OK ||
			!strings.Contains(r.Saw, "exceeded quota") {
			t.Errorf("%+v", r)
		}
		began := time.Now()
		changes = began.Add(3 * time.Second)
		if r := w.one(t, probeCheck(0, `text.contains("exceeded quota")`)); !r.OK || time.Since(began) < 3*time.Second {
			t.Errorf("%+v", r)
		}
	})
}

// A pod whose creation got no answer may be there: it is taken, or deleted, and never a second one made beside it.
func TestProbeAnswerLost(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"goes on", "is cancelled"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				made := w.node(func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) })
				ctx, cancel := context.WithCancel(t.Context())
				first := true
				w.dynamic.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if !first {
						return false, nil, nil
					}
					first = false
					create := a.(clienttesting.CreateAction)
					if err := w.dynamic.Tracker().Create(create.GetResource(), create.GetObject(), "a"); err != nil {
						t.Error(err)
					}
					if then == "is cancelled" {
						cancel()
					}
					return true, nil, errRefused
				})
				results, err := w.Run(ctx, []scenario.Check{probeCheck(10*time.Second, `o.status.phase == "Running"`)})
				if then == "goes on" && (err != nil || !OK(results)) ||
					then == "is cancelled" && !errors.Is(err, context.Canceled) {
					t.Errorf("%+v, %v", results, err)
				}
				if left := w.left(t); len(left) > 0 {
					t.Errorf("left: %v; made %v", left, made())
				}
				cancel()
			})
		})
	}
}

// A node that is gone does not keep the pod, or the caller; and a pod that cannot be deleted is named, with what
// deletes it.
func TestPodStays(t *testing.T) {
	t.Parallel()
	for name, forced := range map[string]bool{"its node is gone": true, "for ever": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.node(func(int, time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) })
				w.dynamic.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					options := a.(clienttesting.DeleteActionImpl).DeleteOptions
					if options.Preconditions == nil || options.Preconditions.UID == nil {
						t.Error("deleted without its UID")
					}
					return !forced || options.GracePeriodSeconds == nil, nil, nil
				})
				r := w.one(t, probeCheck(10*time.Second, `o.status.phase == "Running"`))
				if !r.OK || r.Took > 25*time.Second || forced != (len(w.left(t)) == 0) ||
					!forced != strings.Contains(r.Message, "kubectl delete pod step-") {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// What a pod says itself stays; what it leaves open passes Pod Security and quotas, and has no word of this tool.
func TestHarden(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.Labels = map[string]string{"app.kubernetes.io/instance": "kestrel"}
	for in, want := range map[string]string{
		`{"containers": [{"name": "main"}]}`: `activeDeadlineSeconds: 3600
automountServiceAccountToken: false
containers:
- image: registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9
  imagePullPolicy: IfNotPresent
  name: main
  resources:
    limits:
      cpu: 200m
      memory: 128Mi
    requests:
      cpu: 10m
      memory: 16Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
enableServiceLinks: false
restartPolicy: Never
securityContext:
  runAsGroup: 65534
  runAsNonRoot: true
  runAsUser: 65534
  seccompProfile:
    type: RuntimeDefault
terminationGracePeriodSeconds: 1
`,
		`{"restartPolicy": "Always", "activeDeadlineSeconds": 5, "automountServiceAccountToken": true, "enableServiceLinks": true, "terminationGracePeriodSeconds": 7,
		  "containers": [{"name": "main", "image": "x", "imagePullPolicy": "Never", "securityContext": {"privileged": true}, "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1}}}]}`: `activeDeadlineSeconds: 5
automountServiceAccountToken: true
containers:
- image: x
  imagePullPolicy: Never
  name: main
  resources:
    limits:
      cpu: "1"
      memory: 1Gi
      nvidia.com/gpu: 1
    requests: {}
  securityContext:
    privileged: true
enableServiceLinks: true
restartPolicy: Always
terminationGracePeriodSeconds: 7
`,
	} {
		object := map[string]any{"metadata": map[string]any{"namespace": "a", "labels": map[string]any{"app": "x"}}}
		if err := yaml.Unmarshal([]byte(`{"spec": `+in+`}`), &object); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(object)
		object = runtime.DeepCopyJSON(int64s(object).(map[string]any))
		_, o, err := w.newPod(object)
		if err != nil {
			t.Fatal(err)
		}
		got, err := yaml.Marshal(o.Object["spec"])
		if err != nil || string(got) != want {
			t.Errorf("%v\n%s\nwanted\n%s", err, got, want)
		}
		if labels := o.GetLabels(); labels["app"] != "x" || labels["app.kubernetes.io/instance"] != "kestrel" ||
			!strings.HasPrefix(o.GetName(), "check-") {
			t.Errorf("%s %v", o.GetName(), labels)
		}
		if text := fmt.Sprint(o.Object); strings.Contains(text, "gpu-fault") || strings.Contains(text, "gpufault") {
			t.Error(text)
		}
		if fmt.Sprint(object) != before {
			t.Errorf("the scenario's own object was changed: %v", object)
		}
	}
	for _, bad := range []map[string]any{
		{}, {"metadata": map[string]any{"namespace": "a"}}, {"metadata": map[string]any{"namespace": "a"}, "spec": "x"},
		{"metadata": map[string]any{"namespace": "a"}, "spec": map[string]any{"containers": "x"}},
	} {
		if _, _, err := w.newPod(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

// int64s returns what scenarios have: JSON's numbers as Kubernetes reads them.
func int64s(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = int64s(item)
		}
	case []any:
		for i, item := range v {
			v[i] = int64s(item)
		}
	case float64:
		return int64(v)
	}
	return v
}

// A peer runs before the probe's pod, which gets its address; its start does not count, and both are deleted. A
// program that answers in the peer's place cannot know the address in advance.
func TestProbePeer(t *testing.T) {
	t.Parallel()
	const slow = 20 * time.Second
	for name, test := range map[string]struct {
		peer func(age time.Duration) corev1.PodStatus
		ok   bool
		made int
		most time.Duration
		why  string
	}{
		"becomes ready": {func(age time.Duration) corev1.PodStatus {
			if age < slow {
				return phase(corev1.PodRunning, runs())
			}
			ready := phase(corev1.PodRunning, runs())
			ready.PodIP = "10.1.2.3"
			ready.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			return ready
		}, true, 2, slow + 12*time.Second, ""},
		"cannot be scheduled": {unschedulable, false, 1, 12 * time.Second, "the peer is not running: "},
		"never becomes ready": {func(time.Duration) corev1.PodStatus { return phase(corev1.PodRunning, runs()) },
			false, 1, startFor + 12*time.Second, "the peer is not running: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				made := w.node(func(n int, age time.Duration) corev1.PodStatus {
					if n == 1 {
						return test.peer(age)
					}
					if age < 5*time.Second {
						return phase(corev1.PodPending)
					}
					return phase(corev1.PodSucceeded, terminated(0))
				})
				check := probeCheck(10*time.Second,
					`o.spec.containers[0].env == [{"name": "PEER", "value": "10.1.2.3"}] && o.status.phase == "Succeeded"`)
				check.Probe.Peer = check.Probe.Pod
				r := w.one(t, check)
				if r.OK != test.ok || len(made()) != test.made || r.Took > test.most ||
					!strings.Contains(r.Message, test.why) {
					t.Errorf("%+v; %d pods", r, len(made()))
				}
				if left := w.left(t); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

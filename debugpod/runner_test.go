package debugpod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var pods = corev1.SchemeGroupVersion.WithResource("pods")

func testSpec() Spec {
	return Spec{Run: "xid-abc123", Node: "gpu-1", Namespace: "gpu-fault", Arch: "amd64"}
}

// site is a fake cluster with a stand-in for the kubelet.
type site struct {
	*fake.Clientset
	runner *Runner
	said   []string
}

// newSite returns a cluster whose kubelet gives a new pod the statuses, one after the other, as soon as somebody
// watches it.
func newSite(objects []runtime.Object, statuses ...corev1.PodStatus) *site {
	s := &site{Clientset: fake.NewClientset(objects...)}
	s.runner = &Runner{
		Client: s.Clientset,
		Helper: func(string) ([]byte, error) { return []byte("helper"), nil },
	}
	s.runner.Progress = func(text string) { s.said = append(s.said, text) }
	s.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := s.Tracker().Watch(pods, action.GetNamespace())
		go func() {
			for _, status := range statuses {
				time.Sleep(10 * time.Millisecond)
				s.setStatus(status)
			}
			statuses = nil
		}()
		return true, w, err
	})
	return s
}

func (s *site) setStatus(status corev1.PodStatus) {
	spec := testSpec()
	object, err := s.Tracker().Get(pods, spec.Namespace, PodName(spec.Run, spec.Node))
	if err != nil {
		return
	}
	pod := object.(*corev1.Pod).DeepCopy()
	pod.Status = status
	_ = s.Tracker().Update(pods, pod, spec.Namespace)
}

// left returns how many pods there are.
func (s *site) left(t *testing.T) int {
	t.Helper()
	list, err := s.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "gpu-fault")
	if err != nil {
		t.Fatal(err)
	}
	return len(list.(*corev1.PodList).Items)
}

func waitingFor(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{},
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerName,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
}

func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, waitingFor("ContainerCreating", ""), running())
		session, err := s.runner.Start(t.Context(), testSpec())
		if err != nil {
			t.Fatal(err)
		}
		if session.Pod().Status.Phase != corev1.PodRunning {
			t.Errorf("the session's pod is %s", session.Pod().Status.Phase)
		}
		if all := strings.Join(s.said, "\n"); len(s.said) != 2 || !strings.Contains(all, " created") ||
			!strings.HasSuffix(all, "debug pod running") {
			t.Errorf("progress: %s", all)
		}
		for range 2 { // it may be called again
			if err := session.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if s.left(t) != 0 {
			t.Error("the pod is left")
		}
	})
}

func TestStartFails(t *testing.T) {
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "gpu-fault"}, Type: corev1.EventTypeWarning,
		Reason: "FailedCreatePodSandBox", Message: "cni is broken",
	}
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: ready, Message: "Kubelet stopped posting node status."},
			},
		}}
	}
	for name, tc := range map[string]struct {
		objects  []runtime.Object
		statuses []corev1.PodStatus
		reason   string
		says     string
		within   time.Duration
	}{
		"image": {
			nil, []corev1.PodStatus{waitingFor("ContainerCreating", ""), waitingFor("ErrImagePull", "not found")},
			"ErrImagePull", "not found", time.Second,
		},
		"admission": {
			nil, []corev1.PodStatus{{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "no cpu"}}, "OutOfcpu",
			"node gpu-1 is full", time.Second,
		},
		"node missing": {nil, nil, ReasonNodeMissing, `node "gpu-1" not found`, 3 * time.Second},
		"node away": {
			[]runtime.Object{node(corev1.ConditionUnknown)}, nil, ReasonNodeNotReady, "stopped posting",
			3 * time.Second,
		},
		"never runs": {
			[]runtime.Object{node(corev1.ConditionTrue), event},
			[]corev1.PodStatus{waitingFor("ContainerCreating", "slow")}, ReasonTimeout,
			"ContainerCreating: slow (events: FailedCreatePodSandBox: cni is broken)", time.Minute + time.Second,
		},
		"never seen": {
			[]runtime.Object{node(corev1.ConditionTrue)}, nil, ReasonTimeout, "kubelet has not processed the pod",
			time.Minute + time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(tc.objects, tc.statuses...)
				start := time.Now()
				_, err := s.runner.Start(t.Context(), testSpec())
				var failure *StartError
				if !errors.As(err, &failure) || failure.Reason != tc.reason || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want %s with %q", err, tc.reason, tc.says)
				}
				if took := time.Since(start); took > tc.within {
					t.Errorf("took %v", took)
				}
				if s.left(t) != 0 {
					t.Error("the pod is left")
				}
				if all := strings.Join(s.said, "\n"); tc.reason == ReasonTimeout &&
					(len(s.said) < 2 || !strings.HasPrefix(s.said[1], "debug pod: ")) {
					t.Errorf("progress: %s", all)
				}
			})
		})
	}
}

func TestStartedPodIsDeletedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, waitingFor("ContainerCreating", ""))
		time.AfterFunc(time.Second,
			func() { _ = s.Tracker().Delete(pods, "gpu-fault", PodName("xid-abc123", "gpu-1")) })
		_, err := s.runner.Start(t.Context(), testSpec())
		var failure *StartError
		if !errors.As(err, &failure) || failure.Reason != ReasonDeleted {
			t.Errorf("got %v", err)
		}
	})
}

func TestStartCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, waitingFor("ContainerCreating", ""))
		interrupted := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(interrupted) })
		_, err := s.runner.Start(ctx, testSpec())
		if !errors.Is(err, interrupted) {
			t.Errorf("got %v", err)
		}
		if s.left(t) != 0 {
			t.Error("the pod is left")
		}
	})
}

func TestCloseAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, running())
		ctx, cancel := context.WithCancel(t.Context())
		session, err := s.runner.Start(ctx, testSpec())
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		failed := false // once: the second try must have time, too
		s.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failed {
				return false, nil, nil
			}
			failed = true
			return true, nil, apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "delete", 1)
		})
		if err := session.Close(ctx); err != nil || s.left(t) != 0 {
			t.Errorf("%v, %d pods left", err, s.left(t))
		}
	})
}

// TestWatchIsNoHelp holds that a pod is seen to run where watching is forbidden, or ends at once, every time.
func TestWatchIsNoHelp(t *testing.T) {
	for name, react := range map[string]func() (watch.Interface, error){
		"forbidden": func() (watch.Interface, error) { return nil, forbidden("cannot watch") },
		"ends": func() (watch.Interface, error) {
			w := watch.NewFake()
			w.Stop()
			return w, nil
		},
		"too old": func() (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(1, false)
			w.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
			return w, nil
		},
		"silent": func() (watch.Interface, error) { return watch.NewFake(), nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
				s := newSite([]runtime.Object{node})
				s.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
					w, err := react()
					return true, w, err
				})
				time.AfterFunc(time.Second, func() { s.setStatus(running()) })
				start := time.Now()
				if _, err := s.runner.Start(t.Context(), testSpec()); err != nil || time.Since(start) > 3*time.Second {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// Who waits is told so all the time, and for how long; and whether it was the image that took so long.
func TestStartSaysThatItWaits(t *testing.T) {
	for name, pulled := range map[string]bool{"the image": false, "the runtime": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				event := func(reason string) *corev1.Event {
					return &corev1.Event{
						ObjectMeta: metav1.ObjectMeta{Name: reason, Namespace: "gpu-fault"},
						Type:       corev1.EventTypeNormal, Reason: reason, Message: "Pulling image \"x\"",
					}
				}
				ready := corev1.NodeStatus{
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				}
				objects := []runtime.Object{
					event("Pulling"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: ready},
				}
				if pulled {
					objects = append(objects, event("Pulled"))
				}
				s := newSite(objects, waitingFor("ContainerCreating", ""))
				_, err := s.runner.Start(t.Context(), testSpec())
				var failure *StartError
				if !errors.As(err, &failure) || failure.Reason != ReasonTimeout || failure.Pulls == pulled {
					t.Errorf("got %v", err)
				}
				if all := strings.Join(s.said, "\n"); len(s.said) != 5 ||
					!strings.Contains(all, "still ContainerCreating, after 16s of 1m0s") &&
						!strings.Contains(all, "still ContainerCreating, after 18s of 1m0s") {
					t.Errorf("while it waits it says\n%s", all)
				}
			})
		})
	}
}

package debugpod

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// TestAmbiguousCreate: the answer to the creation is lost, and the pod is there, or comes later, or never.
func TestAmbiguousCreate(t *testing.T) {
	lost := &url.Error{Op: "Post", URL: "https://x", Err: errors.New("connection reset by peer")}
	for name, appears := range map[string]time.Duration{"there": 0, "later": time.Second, "never": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(nil)
				s.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					pod := action.(clienttesting.CreateAction).GetObject()
					if appears >= 0 {
						time.AfterFunc(appears, func() { _ = s.Tracker().Create(pods, pod, "gpu-fault") })
						synctest.Wait()
					}
					return true, nil, lost
				})
				_, err := s.runner.Start(t.Context(), testSpec())
				if !errors.Is(err, lost) {
					t.Errorf("got %v", err)
				}
				time.Sleep(5 * time.Second)
				if s.left(t) != 0 {
					t.Error("the pod is left")
				}
			})
		})
	}
}

func TestRefusedCreateDeletesNothing(t *testing.T) {
	s := newSite(nil)
	s.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, forbidden(`violates PodSecurity "baseline:latest": privileged`)
	})
	_, err := s.runner.Start(t.Context(), testSpec())
	var failure *StartError
	if !errors.As(err, &failure) || failure.Reason != ReasonPodSecurity {
		t.Errorf("got %v", err)
	}
	for _, a := range s.Actions() {
		if a.GetVerb() == "delete" {
			t.Error("a pod that was never made is deleted")
		}
	}
}

func TestServiceAccountComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, running())
		tries := 0
		s.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if tries++; tries < 4 {
				return true, nil,
					forbidden(`error looking up service account gpu-fault/default: serviceaccount "default" not found`)
			}
			return false, nil, nil
		})
		if _, err := s.runner.Start(t.Context(), testSpec()); err != nil {
			t.Error(err)
		}
	})
}

func TestNameIsTaken(t *testing.T) {
	ours := Pod(testSpec())
	ours.UID, ours.Status = "ours", running()
	foreign := ours.DeepCopy()
	foreign.Labels[LabelRun] = "another"
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		reason string
	}{
		"by our own first try": {ours, ""},
		"by another run":       {foreign, ReasonNameTaken},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite([]runtime.Object{tc.pod})
			session, err := s.runner.Start(t.Context(), testSpec())
			var failure *StartError
			switch {
			case tc.reason == "" && (err != nil || session.Pod().UID != "ours"):
				t.Error(err)
			case tc.reason != "" && (!errors.As(err, &failure) || failure.Reason != tc.reason):
				t.Errorf("got %v", err)
			case tc.reason != "" && s.left(t) != 1:
				t.Error("somebody else's pod was deleted")
			}
		})
	}
}

func TestNameIsTakenByADyingPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dying := Pod(testSpec())
		dying.DeletionTimestamp, dying.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x/y"}
		s := newSite([]runtime.Object{dying}, running())
		time.AfterFunc(time.Second, func() { _ = s.Tracker().Delete(pods, "gpu-fault", dying.Name) })
		if _, err := s.runner.Start(t.Context(), testSpec()); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseSaysWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(nil, running())
		session, err := s.runner.Start(t.Context(), testSpec())
		if err != nil {
			t.Fatal(err)
		}
		var answer error
		s.PrependReactor("delete", "pods",
			func(clienttesting.Action) (bool, runtime.Object, error) { return answer != nil, nil, answer })
		command := "kubectl delete pod " + session.Pod().Name + " -n gpu-fault"
		for _, answer = range []error{
			forbidden("no"), apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "delete", 1),
		} {
			if err := session.Close(t.Context()); !errors.Is(err, answer) || !strings.Contains(err.Error(), command) {
				t.Errorf("got %v", err)
			}
		}
		answer = nil
		if err := session.Close(t.Context()); err != nil || s.left(t) != 0 {
			t.Errorf("after it works again: %v", err)
		}
	})
}

func TestDryRun(t *testing.T) {
	s := newSite(nil)
	var options metav1.CreateOptions
	var answer error
	s.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		options = create.CreateOptions
		return true, create.GetObject(), answer
	})
	if err := s.runner.DryRun(t.Context(), testSpec()); err != nil || len(options.DryRun) != 1 ||
		options.DryRun[0] != metav1.DryRunAll {
		t.Errorf("%v with %v", err, options)
	}
	answer = forbidden("exceeded quota: x")
	var failure *StartError
	if err := s.runner.DryRun(t.Context(), testSpec()); !errors.As(err, &failure) || failure.Reason != ReasonQuota {
		t.Errorf("got %v", err)
	}
	s.runner.Helper = func(string) ([]byte, error) { return nil, errors.New("no helper") }
	if err := s.runner.DryRun(t.Context(), testSpec()); err == nil {
		t.Error("without a helper")
	}
	s.ClearActions()
	if _, err := s.runner.Start(t.Context(), testSpec()); err == nil || len(s.Actions()) != 0 {
		t.Errorf("without a helper: %v, %d requests", err, len(s.Actions()))
	}
}

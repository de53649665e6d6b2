package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
)

func newClient() (*Client, *fake.Clientset) {
	kube := fake.NewClientset()
	return &Client{Kube: kube, Namespace: "gpu-fault", Every: time.Millisecond}, kube
}

// started returns a client with a fleet of two pods.
func started(t *testing.T) (*Client, *fake.Clientset, *batchv1.Job) {
	t.Helper()
	c, kube := newClient()
	job, plan, err := Objects(testPlan(4, 2), testSettings())
	if err != nil {
		t.Fatal(err)
	}
	job.UID = "job-uid"
	if job, err = c.Start(t.Context(), job, plan); err != nil {
		t.Fatal(err)
	}
	return c, kube, job
}

// The Job owns its plan: whoever deletes the Job, be it the cluster, leaves nothing.
func TestTheJobOwnsItsPlan(t *testing.T) {
	t.Parallel()
	_, kube, job := started(t)
	plan, err := kube.CoreV1().ConfigMaps("gpu-fault").Get(t.Context(), id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.OwnerReferences) != 1 || plan.OwnerReferences[0].UID != job.UID {
		t.Errorf("owners %+v", plan.OwnerReferences)
	}
}

// Without its plan, the Job must not remain: its pods would wait for it.
func TestStartRemovesTheJobIfThePlanIsRefused(t *testing.T) {
	t.Parallel()
	c, kube := newClient()
	kube.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("quota")
	})
	job, plan, err := Objects(testPlan(4, 2), testSettings())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), job, plan); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("error %v", err)
	}
	if exists, err := c.Exists(t.Context(), id); exists || err != nil {
		t.Errorf("the Job remains: %v %v", exists, err)
	}
}

// A missing service account, an old cluster and a policy are reported before anything is created, with what to do.
func TestDryRun(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		job, pod error
		old      bool
		want     string
	}{
		"admitted": {},
		"no account": {
			pod:  apierrors.NewForbidden(pods, id, errors.New("error looking up service account gpu-fault/gpu-fault-fleet")),
			want: "can create it with: kubectl grant | kubectl apply -f -",
		},
		"no namespace": {
			job:  apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "gpu-fault"),
			want: "can create it with",
		},
		"policy": {
			pod: apierrors.NewForbidden(pods, id, errors.New("denied")), want: "the Job's pods would not be admitted",
		},
		"job quota":      {job: errors.New("exceeded quota"), want: "the Job would not be admitted: exceeded quota"},
		"old Kubernetes": {old: true, want: "requires Kubernetes 1.29"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, kube := newClient()
			answer := func(err error) clienttesting.ReactionFunc {
				return func(a clienttesting.Action) (bool, runtime.Object, error) {
					object := a.(clienttesting.CreateAction).GetObject()
					if job, ok := object.(*batchv1.Job); ok && test.old {
						job.Spec.BackoffLimitPerIndex = nil
					}
					return true, object, err
				}
			}
			kube.PrependReactor("create", "jobs", answer(test.job))
			kube.PrependReactor("create", "pods", answer(test.pod))
			err := c.DryRun(t.Context(), Job(testPlan(4, 2), testSettings()), "kubectl grant")
			if !says(err, test.want) {
				t.Errorf("%v, wanted %q", err, test.want)
			}
		})
	}
}

// One request that fails does not leave the Job injecting: Stop repeats what fails.
func TestStopRepeatsWhatFails(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"get", "delete"} {
		c, kube, _ := started(t)
		failures := 2
		kube.PrependReactor(verb, "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, apierrors.NewTooManyRequests("busy", 1)
		})
		if err := c.Stop(t.Context(), id); err != nil {
			t.Errorf("%s fails twice: %v", verb, err)
		}
		if exists, err := c.Exists(t.Context(), id); exists || err != nil {
			t.Errorf("%s fails twice: the Job remains: %v %v", verb, exists, err)
		}
	}
}

// If the response to the creation of the Job is lost, the Job does not remain.
func TestStartRemovesAJobWhoseResponseWasLost(t *testing.T) {
	t.Parallel()
	c, kube := newClient()
	job, plan, err := Objects(testPlan(4, 2), testSettings())
	if err != nil {
		t.Fatal(err)
	}
	kube.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if err := kube.Tracker().Add(a.(clienttesting.CreateAction).GetObject()); err != nil {
			t.Error(err)
		}
		return true, nil, errors.New("connection reset")
	})
	if _, err := c.Start(t.Context(), job, plan); err == nil || !strings.Contains(err.Error(), "connection reset") {
		t.Errorf("error %v", err)
	}
	if exists, err := c.Exists(t.Context(), id); exists || err != nil {
		t.Errorf("the Job remains: %v %v", exists, err)
	}
}

// setStatus changes the status of the fleet's Job.
func setStatus(t *testing.T, kube *fake.Clientset, change func(*batchv1.JobStatus)) {
	t.Helper()
	jobs := kube.BatchV1().Jobs("gpu-fault")
	job, err := jobs.Get(t.Context(), id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(&job.Status)
	if _, err := jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Progress is one line for the whole fleet, which names the pods that failed; following ends with the Job.
func TestFollow(t *testing.T) {
	t.Parallel()
	c, kube, job := started(t)
	var said []string
	show := func(text string) {
		said = append(said, text)
		setStatus(t, kube, func(s *batchv1.JobStatus) {
			s.Ready, s.Active = new(int32(2)), 2
			if len(said) > 1 {
				s.Ready, s.Active, s.Succeeded, s.Failed, s.FailedIndexes = nil, 0, 1, 1, new("1")
				s.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
			}
		})
	}
	if err := c.Follow(t.Context(), job, time.Minute, show); err != nil {
		t.Fatal(err)
	}
	want := "0 of 2 pods done|0 of 2 pods done, 2 running|1 of 2 pods done, failed: 1"
	if got := strings.Join(said, "|"); got != want {
		t.Errorf("progress %q, wanted %q", got, want)
	}
}

// A pod that can never start is reported with the reason and the advice of debug pods, instead of waiting for it.
func TestFollowSaysWhyNoPodStarts(t *testing.T) {
	t.Parallel()
	c, kube, job := started(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: id + "-0", Namespace: "gpu-fault", Labels: map[string]string{
			batchv1.JobNameLabel: id,
		}},
		Spec: job.Spec.Template.Spec,
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: container, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"},
			},
		}}},
	}
	if _, err := kube.CoreV1().Pods("gpu-fault").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Slow = time.Millisecond
	err := c.Follow(t.Context(), job, time.Minute, func(string) {})
	var start *debugpod.StartError
	if !errors.As(err, &start) || start.Reason != "ErrImagePull" || !strings.Contains(err.Error(), "--image") {
		t.Errorf("error %v", err)
	}
}

// Ctrl-C ends following at once with its cause; a Job that another client deletes does too.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	c, _, job := started(t)
	stopped := errors.New("stopped by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if err := c.Follow(ctx, job, time.Minute, func(string) {}); !errors.Is(err, stopped) {
		t.Errorf("error %v", err)
	}
	if err := c.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	err := c.Follow(t.Context(), job, time.Minute, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "stopped by another client") {
		t.Errorf("error %v", err)
	}
}

// Records and names are untrusted: only the Job of a fleet is ever deleted, and it is deleted so that its pods end
// first.
func TestStopDeletesOnlyTheJobOfTheFleet(t *testing.T) {
	t.Parallel()
	c, kube, _ := started(t)
	jobs := kube.BatchV1().Jobs("gpu-fault")
	for _, name := range []string{"fleet-222222", "backup"} {
		if _, err := jobs.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fleet-222222", "backup", "fleet-333333", id} {
		if err := c.Stop(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	left, err := jobs.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 2 {
		t.Errorf("%d Jobs are left: %v", len(left.Items), err)
	}
	for _, action := range kube.Actions() {
		deletion, ok := action.(clienttesting.DeleteActionImpl)
		if ok && *deletion.DeleteOptions.PropagationPolicy != metav1.DeletePropagationForeground {
			t.Errorf("deleted with %s", *deletion.DeleteOptions.PropagationPolicy)
		}
	}
}

// A fleet is found by its plan, even before its first record.
func TestFind(t *testing.T) {
	t.Parallel()
	c, _, _ := started(t)
	if ids, err := c.Find(t.Context()); err != nil || len(ids) != 1 || ids[0] != id {
		t.Errorf("%v %v", ids, err)
	}
}

// The reason of a shard without a record is the error at the end of its log.
func TestFailures(t *testing.T) {
	t.Parallel()
	c, kube, _ := started(t)
	end := "node-1: debug pod running\nerror: nothing was changed: 2 problems:\n  - a\n  - b\n"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: id + "-1", Namespace: "gpu-fault", Labels: map[string]string{batchv1.JobNameLabel: id},
			Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: "1"},
		},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name: container, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: end},
			},
		}}},
	}
	if _, err := kube.CoreV1().Pods("gpu-fault").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := c.Failures(t.Context(), id)
	if want := "nothing was changed: 2 problems:\n  - a\n  - b"; err != nil || all[1] != want || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}
}

// says reports whether an error contains a text, or is nil if the text is empty.
func says(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}

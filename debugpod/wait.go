package debugpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// lookEvery is how often the pod, and if nothing happens its node, is looked at besides the watch: for proxies that
// hold events back, users who may not watch, and nodes whose kubelet is silent.
const lookEvery = 2 * time.Second

// saysEvery is how often whoever waits is told that the pod still does not run.
const saysEvery = 15 * time.Second

var errStartTimeout = errors.New("it did not run in time")

// untilRunning waits until the pod's container runs. Watching from the version that Create returned misses nothing, and
// knows of it some milliseconds after the kubelet said so; client-go's UntilWithSync would list first, and poll for its
// cache to sync.
func (r *Runner) untilRunning(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	seen := ""
	began := time.Now()
	said := began
	last := pod
	w := r.watch(ctx, last)
	defer func() { w.Stop() }()
	for {
		verdict := judge(last)
		switch {
		case verdict.running:
			return last, nil
		case verdict.failure != nil:
			return nil, r.withEvents(ctx, verdict.failure, last)
		}
		select {
		case <-ctx.Done():
			return nil, r.whyNotRunning(ctx, last, verdict.waiting)
		case event, open := <-w.ResultChan():
			if next, ok := event.Object.(*corev1.Pod); open && ok && next.Name == pod.Name {
				if event.Type == watch.Deleted {
					return nil, &StartError{Reason: ReasonDeleted, Message: "somebody deleted the debug pod"}
				}
				last = next
				continue
			}
			if open && event.Type != watch.Error {
				continue
			}
			// The watch ended: look, then watch from there.
			w.Stop()
			if err := pause(ctx, retryEvery); err != nil {
				return nil, r.whyNotRunning(ctx, last, verdict.waiting)
			}
			next, err := r.look(ctx, last)
			if err != nil {
				return nil, err
			}
			last = next
			w = r.watch(ctx, last)
		case <-ticker.C:
			next, err := r.look(ctx, last)
			if err != nil {
				return nil, err
			}
			last = next
			// A pod that takes long is worth words; most run before the first tick.
			switch now := judge(last).waiting; {
			case now == "":
			case now != seen:
				seen, said = now, time.Now()
				r.progress("debug pod: %s", seen)
			case time.Since(said) >= saysEvery:
				said = time.Now()
				r.progress("debug pod: still %s, after %s%s", seen, said.Sub(began).Round(time.Second),
					ofAll(ctx, began))
			}
			if last.Status.StartTime == nil {
				if failure := r.nodeFailure(ctx, last.Spec.NodeName); failure != nil {
					return nil, failure
				}
			}
		}
	}
}

// ofAll returns how long there is to wait: " of 2m0s"; nothing when there is no end.
func ofAll(ctx context.Context, began time.Time) string {
	end, limited := ctx.Deadline()
	if !limited {
		return ""
	}
	return fmt.Sprintf(" of %s", end.Sub(began).Round(time.Second))
}

// watch returns events of the pod after the version that is known. Where it cannot be watched, the watch ends at once,
// and looking takes its place.
func (r *Runner) watch(ctx context.Context, pod *corev1.Pod) watch.Interface {
	w, err := r.Client.CoreV1().Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name).String(),
		ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		ended := watch.NewFake()
		ended.Stop()
		return ended
	}
	return w
}

// look reads the pod as it is now. When the API server cannot be asked, the old state stands.
func (r *Runner) look(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		return nil, &StartError{Reason: ReasonDeleted, Message: "somebody deleted the debug pod"}
	case err != nil:
		return pod, nil
	}
	return now, nil
}

// whyNotRunning returns the error when ctx ended. The caller's own end is reported as it is.
func (r *Runner) whyNotRunning(ctx context.Context, pod *corev1.Pod, waiting string) error {
	if !errors.Is(context.Cause(ctx), errStartTimeout) {
		return context.Cause(ctx)
	}
	after := context.WithoutCancel(ctx)
	if failure := r.nodeFailure(after, pod.Spec.NodeName); failure != nil {
		return failure
	}
	return r.withEvents(after, &StartError{
		Reason:  ReasonTimeout,
		Message: fmt.Sprintf("the debug pod did not run in time: %s", waiting),
		Hint:    "allow more with --timeout, or see kubectl describe node " + pod.Spec.NodeName,
	}, pod)
}

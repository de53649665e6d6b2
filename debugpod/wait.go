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

// lookEvery is the interval for polling the pod and its node in addition to the watch. Polling covers proxies that
// delay events, users who cannot watch, and nodes with an unresponsive kubelet.
const lookEvery = 2 * time.Second

// saysEvery is the interval between progress messages while the pod is not running.
const saysEvery = 15 * time.Second

var errStartTimeout = errors.New("timed out waiting for the pod to run")

// untilRunning waits until the pod's container is running. A watch starting at the version that Create returned misses
// no event, and reports the start within milliseconds. By contrast, client-go's UntilWithSync would list first, and
// poll until its cache is synced.
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
					return nil, &StartError{Reason: ReasonDeleted, Message: messageDeleted}
				}
				last = next
				continue
			}
			if open && event.Type != watch.Error {
				continue
			}
			// The watch ended. Read the pod, and start a new watch at its version.
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
			// Report progress only for a slow pod. Most pods are running before the first tick.
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

// ofAll returns the total time limit, such as " of 2m0s", or "" if there is none.
func ofAll(ctx context.Context, began time.Time) string {
	end, limited := ctx.Deadline()
	if !limited {
		return ""
	}
	return fmt.Sprintf(" of %s", end.Sub(began).Round(time.Second))
}

// watch watches the pod, starting at its known version. If the watch fails, the returned watch ends immediately, and
// the caller polls.
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

// look returns the current pod, or the last known pod if the API server cannot be reached.
func (r *Runner) look(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		return nil, &StartError{Reason: ReasonDeleted, Message: messageDeleted}
	case err != nil:
		return pod, nil
	}
	return now, nil
}

// whyNotRunning returns the error after ctx has ended. If the caller's own context ended, it returns the cause
// unchanged.
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
		Message: fmt.Sprintf("timed out waiting for the debug pod to run: %s", waiting),
		Hint:    "increase --timeout, or see kubectl describe node " + pod.Spec.NodeName,
	}, pod)
}

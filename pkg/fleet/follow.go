package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// defaultSlow is the default of Client.Slow.
const defaultSlow = 5 * time.Second

// Follow waits until the Job has finished, and shows its progress. If no pod starts within startTimeout, or no pod can
// start, the error contains the reason. The caller then stops the fleet.
func (c *Client) Follow(ctx context.Context, job *batchv1.Job, startTimeout time.Duration, show func(string)) error {
	now := time.Now()
	f := &following{Client: c, job: job, began: now, running: now, startTimeout: startTimeout}
	shown := ""
	for {
		line, done, err := f.look(ctx)
		if err != nil {
			return err
		}
		if line != shown {
			show(line)
			shown = line
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(c.every()):
		}
	}
}

// following is the state of Follow.
type following struct {
	*Client
	job          *batchv1.Job
	began        time.Time
	running      time.Time // time at which all active pods were last seen running
	ran          bool      // whether a pod has run
	startTimeout time.Duration
}

// look reads the Job once. It returns the progress, and whether the Job has finished.
func (f *following) look(ctx context.Context) (line string, done bool, err error) {
	job, err := f.Client.job(ctx, f.job.Name)
	switch {
	case ctx.Err() != nil:
		return "", false, context.Cause(ctx)
	case err != nil: // the Job does not need its client, so the client retries
		return err.Error(), false, nil
	case job == nil || job.UID != f.job.UID || job.DeletionTimestamp != nil:
		return "", false, fmt.Errorf("fleet %s was stopped by another client", f.job.Name)
	}
	f.job = job
	if job.Status.Succeeded+job.Status.Failed > 0 || value(job.Status.Ready) > 0 {
		f.ran = true
	}
	line = progress(job)
	if finished(job) {
		return line, true, nil
	}
	waits, err := f.waits(ctx)
	if err != nil {
		return "", false, fmt.Errorf("no pod of fleet %s started: %w", job.Name, err)
	}
	return line + waits, false, nil
}

// waits returns the reason why a pod has been waiting for some time, or "" if all pods are running. The error is set if
// no pod has started yet, and either none can start or none has started in time.
func (f *following) waits(ctx context.Context) (string, error) {
	if f.ran && f.job.Status.Active == value(f.job.Status.Ready) {
		f.running = time.Now()
	}
	if time.Since(f.running) <= cmp.Or(f.Slow, defaultSlow) {
		return "", nil
	}
	why, fatal := f.whyWaiting(ctx, f.job)
	switch {
	case !f.ran && fatal != nil:
		return "", fatal
	case !f.ran && time.Since(f.began) > f.startTimeout:
		return "", errors.New(why)
	}
	return "; waiting: " + why, nil
}

// finished reports whether the Job has finished and none of its pods is running.
func finished(job *batchv1.Job) bool {
	if job.Status.Active > 0 || value(job.Status.Terminating) > 0 {
		return false
	}
	for _, condition := range job.Status.Conditions {
		over := condition.Type == batchv1.JobComplete || condition.Type == batchv1.JobFailed
		if over && condition.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// progress describes how many shards are done.
func progress(job *batchv1.Job) string {
	status := job.Status
	text := fmt.Sprintf("%d of %s done", status.Succeeded, count.Of(value(job.Spec.Completions), "pod"))
	if running := value(status.Ready); running > 0 {
		text += fmt.Sprintf(", %d running", running)
	}
	if failed := value(status.FailedIndexes); failed != "" {
		text += ", failed: " + failed
	}
	return text
}

// mostWaiting limits the number of pods to read to determine why they are not running.
const mostWaiting = 20

// whyWaiting returns the reason why a pod of the Job is not running. fatal is set if the pod will never run.
func (c *Client) whyWaiting(ctx context.Context, job *batchv1.Job) (why string, fatal error) {
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.JobNameLabel + "=" + job.Name, FieldSelector: "status.phase=Pending", Limit: mostWaiting,
	})
	if err != nil {
		return fmt.Sprintf("cannot list the pods: %v", err), nil
	}
	// The Job replaces a deleted pod, and one node that cannot pull the image does not stop the others.
	failing := 0
	for i := range pods.Items {
		pod := &pods.Items[i]
		waiting, failure := debugpod.WhyWaiting(pod, container)
		if failure != nil && pod.DeletionTimestamp == nil {
			failing++
			fatal = failure
		}
		if failure != nil || why == "" {
			why = pod.Name + ": " + cmp.Or(unschedulable(pod), waiting)
		}
	}
	if failing < len(pods.Items) {
		fatal = nil
	}
	if why != "" {
		return why, fatal
	}
	return cmp.Or(c.lastEvent(ctx, job), "no pod has been created yet"), nil
}

// unschedulable returns the scheduler's message, or "" if the scheduler found a node.
func unschedulable(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// lastEvent returns the message of the Job's last warning event, such as an exceeded quota, or "".
func (c *Client) lastEvent(ctx context.Context, job *batchv1.Job) string {
	events, err := c.Kube.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(job.UID),
	})
	if err != nil {
		return ""
	}
	last, message := time.Time{}, ""
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && !event.LastTimestamp.Time.Before(last) {
			last, message = event.LastTimestamp.Time, event.Message
		}
	}
	return message
}

// Failures returns the reasons why shards failed, by index, from the logs of their pods. It must be called before Stop.
func (c *Client) Failures(ctx context.Context, id string) (map[int]string, error) {
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.JobNameLabel + "=" + id, FieldSelector: "status.phase=Failed",
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of fleet %s: %w", id, err)
	}
	all := map[int]string{}
	for _, pod := range pods.Items {
		index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
		if err != nil {
			continue
		}
		message := pod.Status.Message
		for _, status := range pod.Status.ContainerStatuses {
			if end := status.State.Terminated; end != nil {
				message = cmp.Or(lastError(end.Message), message, fmt.Sprintf("exit code %d", end.ExitCode))
			}
		}
		all[index] = cmp.Or(message, pod.Status.Reason, "the pod failed")
	}
	return all, nil
}

// lastError returns the error at the end of a log, without the lines before it.
func lastError(log string) string {
	const prefix = "error: "
	if i := strings.LastIndex(log, prefix); i >= 0 && (i == 0 || log[i-1] == '\n') {
		return strings.TrimSpace(log[i+len(prefix):])
	}
	return strings.TrimSpace(log)
}

func value[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}

package debugpod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// evidenceTimeout is the timeout for collecting the causes of a failure.
const evidenceTimeout = 3 * time.Second

// nodeFailure returns the reason why no pod can start on a node, or nil if the reason is unknown or the user cannot
// read nodes.
func (r *Runner) nodeFailure(ctx context.Context, name string) *StartError {
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	node, err := r.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &StartError{
			Reason: ReasonNodeMissing, Message: fmt.Sprintf("node %q not found", name), Hint: "see kubectl get nodes",
			Err: err,
		}
	}
	if err != nil {
		return nil
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return &StartError{
				Reason:  ReasonNodeNotReady,
				Message: fmt.Sprintf("node %s is not Ready: %s", name, cmp.Or(c.Message, c.Reason)),
				Hint:    "the kubelet does not start pods; see kubectl describe node " + name,
			}
		}
	}
	return nil
}

// withEvents adds the pod's warning events to a failure, except for events that repeat its message.
func (r *Runner) withEvents(ctx context.Context, failure *StartError, pod *corev1.Pod) *StartError {
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	selector := fields.Set{
		"involvedObject.kind": "Pod", "involvedObject.name": pod.Name, "involvedObject.uid": string(pod.UID),
	}
	list, err := r.Client.CoreV1().Events(pod.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: selector.AsSelector().String()})
	if err != nil {
		return failure // the events are optional; the user may not be allowed to read them
	}
	var said []string
	pulls, pulled := "", false
	for _, e := range list.Items {
		switch {
		case e.InvolvedObject.UID != pod.UID:
		case e.Reason == "Pulling":
			pulls = strings.TrimSpace(e.Message)
		case e.Reason == "Pulled":
			pulled = true
		}
		message := strings.TrimSpace(e.Message)
		text := e.Reason + ": " + message
		// "Error: ErrImagePull" only summarizes another event.
		known := strings.Contains(failure.Message, message) || strings.Contains(message, failure.Message) ||
			strings.HasPrefix(message, "Error: ") || slices.Contains(said, text)
		if e.Type == corev1.EventTypeWarning && e.InvolvedObject.UID == pod.UID && !known {
			said = append(said, text)
		}
	}
	const most = 3
	said = said[max(0, len(said)-most):]
	if len(said) > 0 {
		failure.Message += " (events: " + strings.Join(said, "; ") + ")"
	}
	if pulls != "" && !pulled && failure.Reason == ReasonTimeout {
		failure.Pulls = true
		failure.Message += "; last: " + pulls
	}
	return failure
}

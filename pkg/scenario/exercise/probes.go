package exercise

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// probeWord matches the label values on checks' pods, as created by ledger.NewID.
var probeWord = regexp.MustCompile(`^probe-[a-z0-9]{6}$`)

// staleProbe is the age after which a check's pod is an orphan, left by a trainer's client that crashed.
const staleProbe = 10 * time.Minute

// probeLabels returns the labels for the pods that an exercise's checks start. Candidates can see them.
func probeLabels(word string) map[string]string {
	if word == "" {
		return nil
	}
	return map[string]string{objects.LabelInstance: word}
}

// probes reports whether an object is a pod of a check, possibly of another trainer's concurrent check.
func (e Exercise) probes(ref scenario.Ref, object map[string]any) bool {
	if ref.Kind != "Pod" || ref.APIVersion != "v1" || e.Probe == "" || object == nil {
		return false
	}
	return (&unstructured.Unstructured{Object: object}).GetLabels()[objects.LabelInstance] == e.Probe
}

// sweep deletes check pods older than age, which a crashed client left.
func (l *Lab) sweep(ctx context.Context, e *Exercise, age time.Duration) error {
	if !probeWord.MatchString(e.Probe) { // a forged record must not select which pods are deleted
		return nil
	}
	pods, err := l.Client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{LabelSelector: objects.LabelInstance + "=" + e.Probe})
	if err != nil {
		return fmt.Errorf("list pods from earlier checks: %w", err)
	}
	var failed []error
	for _, pod := range pods.Items {
		if time.Since(pod.CreationTimestamp.Time) < age {
			continue
		}
		options := metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		}
		err := l.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed,
				fmt.Errorf("delete pod %q in namespace %q, left by an earlier check: %w", pod.Name, pod.Namespace,
					err))
		}
	}
	return errors.Join(failed...)
}

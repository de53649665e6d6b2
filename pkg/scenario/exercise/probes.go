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

// probeWord is the form of the words that mark the pods of checks, as ledger.NewID makes them.
var probeWord = regexp.MustCompile(`^probe-[a-z0-9]{6}$`)

// staleProbe is the age from which a pod of a check is nobody's any more: its trainer's client died.
const staleProbe = 10 * time.Minute

// probeLabels returns those of the pods by which an exercise's checks look. Candidates see them.
func probeLabels(word string) map[string]string {
	if word == "" {
		return nil
	}
	return map[string]string{objects.LabelInstance: word}
}

// probes reports whether an object is a pod of a check, perhaps of another trainer's at the same time.
func (e Exercise) probes(ref scenario.Ref, object map[string]any) bool {
	if ref.Kind != "Pod" || ref.APIVersion != "v1" || e.Probe == "" || object == nil {
		return false
	}
	return (&unstructured.Unstructured{Object: object}).GetLabels()[objects.LabelInstance] == e.Probe
}

// sweep deletes the pods of checks that a client which died has left, once they are that old.
func (l *Lab) sweep(ctx context.Context, e *Exercise, age time.Duration) error {
	if !probeWord.MatchString(e.Probe) { // a record that others wrote does not choose whose pods are deleted
		return nil
	}
	pods, err := l.Client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{LabelSelector: objects.LabelInstance + "=" + e.Probe})
	if err != nil {
		return fmt.Errorf("look for what earlier checks left: %w", err)
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
				fmt.Errorf("delete pod %s in namespace %s, which an earlier check left: %w", pod.Name, pod.Namespace,
					err))
		}
	}
	return errors.Join(failed...)
}

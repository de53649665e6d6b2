package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// podTimeout is the time that Revert waits for debug pods to be deleted. Pods on a lost node are never deleted.
const podTimeout = 20 * time.Second

// deletePods deletes the debug pods that a run's client left behind, and waits for their deletion.
func (s *Session) deletePods(ctx context.Context, id string) error {
	pods := s.Client.CoreV1().Pods(s.Ledger.Namespace)
	ours := metav1.ListOptions{LabelSelector: ledger.LabelRun + "=" + id}
	left, err := pods.List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the debug pods that run %s left behind: %w", id, err)
	}
	var failed []error
	for _, pod := range left.Items {
		err := pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, fmt.Errorf("delete debug pod %s, which run %s left behind: %w", pod.Name, id, err))
		}
	}
	if len(left.Items) == 0 || len(failed) > 0 {
		return errors.Join(failed...)
	}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, podTimeout, true,
		func(ctx context.Context) (bool, error) {
			if now, err := pods.List(ctx, ours); err == nil {
				left = now
			}
			return len(left.Items) == 0, nil
		})
	if err != nil {
		return fmt.Errorf("%s of run %s still present after %s; is the node lost?",
			count.Of(len(left.Items), "debug pod"), id, podTimeout)
	}
	return nil
}

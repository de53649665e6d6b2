package cudashim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// ErrImmutable reports that an object's pod templates are immutable.
var ErrImmutable = errors.New("the pod template is immutable: specify --recreate to delete and recreate the workload with the fault, which restarts " +
	"its work")

// explain adds a hint to an API server error for a write.
func explain(err error, what, namespace string) error {
	var status apierrors.APIStatus
	if err == nil || !errors.As(err, &status) || errors.Is(err, context.Canceled) {
		return err
	}
	text := strings.ToLower(err.Error())
	says := func(part string) bool { return strings.Contains(text, part) }
	hint := ""
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		hint = fmt.Sprintf("namespace %q is being deleted: choose another workload", namespace)
	case apierrors.IsNotFound(err) && says("namespaces "):
		hint = "specify the namespace of the workload with -n"
	case says("violates podsecurity"):
		hint =
			"the additions comply with the restricted level, so the template itself violates the policy: see kubectl get namespace " +
				namespace + " --show-labels"
	case says("denied the request"), says("denied request"), says("security context constraint"):
		hint = "an admission policy rejects the change: ask the cluster administrator for an exception for namespace " +
			namespace
	case says("failed calling webhook"):
		hint = "an admission webhook failed: ask the cluster administrator"
	case says("exceeded quota"), says("failed quota"):
		hint = fmt.Sprintf("see kubectl describe quota -n %s", namespace)
	case apierrors.IsForbidden(err) && says("cannot "):
		hint = fmt.Sprintf(
			"an administrator can grant access with: kubectl gpu-fault rbac print --for cuda -n %s | kubectl apply -f -",
			namespace,
		)
	case apierrors.IsRequestEntityTooLargeError(err), says("must have at most"), says("request is too large"):
		hint = "an object can be at most 1 MiB"
	}
	if hint == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w; %s", what, err, hint)
}

// isImmutable reports whether the API server or a controller's webhook rejects a change because the template is
// immutable, as in Jobs and JobSets.
func isImmutable(err error) bool {
	return err != nil && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)) &&
		strings.Contains(err.Error(),
			"immutable")
}

// isStale reports whether another client changed the object after it was read. If the test of a JSON patch fails, the
// API server returns status 422 without causes and without a kind, both of which validation errors always have
// (applyJSPatch).
func isStale(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || len(details.Causes) == 0 && strings.HasPrefix(status.Status().Message,
		"the server rejected our request due to an error in our request")
}

// conflicts returns the backoff for writes that conflict with other clients: about 10 seconds in total.
func conflicts() wait.Backoff {
	return wait.Backoff{Steps: 12, Duration: 20 * time.Millisecond, Factor: 1.7, Jitter: 0.3, Cap: 3 * time.Second}
}

func (c *Cluster) conflicts() wait.Backoff {
	if c.Conflicts.Steps > 0 {
		return c.Conflicts
	}
	return conflicts()
}

// retry calls try again as long as another client has written first. Each call of try must read the object.
func retry(ctx context.Context, backoff wait.Backoff, what string, try func() error) error {
	tries, most := 0, backoff.Steps
	for {
		err := try()
		tries++
		if err == nil || !isStale(err) {
			return err
		}
		if tries >= most {
			return fmt.Errorf("%s was changed by other clients during each of %s: determine which client changes it so often (kubectl get %s "+
				"-o yaml --show-managed-fields): %w", what, count.Of(tries, "attempt"), what, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(backoff.Step()):
		}
	}
}

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

// ErrImmutable says that an object's pod templates cannot be changed while it exists.
var ErrImmutable = errors.New("its pod template cannot be changed: with your consent (--recreate) it is deleted and created again, with the " +
	"fault in it, and its work begins anew")

// explain puts into words why the API server refuses to write an object.
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
		hint = fmt.Sprintf("namespace %s is being deleted: choose a workload that stays", namespace)
	case apierrors.IsNotFound(err) && says("namespaces "):
		hint = "there is no such namespace: give the workload's with -n"
	case says("violates podsecurity"):
		hint =
			"what is added passes the level restricted, so the template did not pass before: see kubectl get namespace " +
				namespace + " --show-labels"
	case says("denied the request"), says("denied request"), says("security context constraint"):
		hint = "an admission policy of the cluster refuses it: ask whoever runs it for an exception for namespace " +
			namespace
	case says("failed calling webhook"):
		hint = "an admission webhook of the cluster does not work: ask whoever runs it"
	case says("exceeded quota"), says("failed quota"):
		hint = fmt.Sprintf("see kubectl describe quota -n %s", namespace)
	case apierrors.IsForbidden(err) && says("cannot "):
		hint = fmt.Sprintf(
			"whoever administers the cluster can allow it: kubectl gpu-fault rbac print --for cuda -n %s | kubectl apply -f -",
			namespace,
		)
	case apierrors.IsRequestEntityTooLargeError(err), says("must have at most"), says("request is too large"):
		hint = "an object has room for 1 MiB"
	}
	if hint == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w; %s", what, err, hint)
}

// isImmutable reports whether the API server, or a controller's webhook, refuses since the template never changes:
// Jobs, JobSets.
func isImmutable(err error) bool {
	return err != nil && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)) &&
		strings.Contains(err.Error(),
			"immutable")
}

// isStale reports whether somebody changed the object after it was read. A JSON patch whose test fails is answered with
// status 422 and neither causes nor a kind, which validation always gives (apiserver's applyJSPatch).
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

// conflicts returns how often a write is tried against others, within some 10 seconds.
func conflicts() wait.Backoff {
	return wait.Backoff{Steps: 12, Duration: 20 * time.Millisecond, Factor: 1.7, Jitter: 0.3, Cap: 3 * time.Second}
}

func (c *Cluster) conflicts() wait.Backoff {
	if c.Conflicts.Steps > 0 {
		return c.Conflicts
	}
	return conflicts()
}

// retry tries again as long as others are faster. The object must be read anew each time.
func retry(ctx context.Context, backoff wait.Backoff, what string, try func() error) error {
	tries, most := 0, backoff.Steps
	for {
		err := try()
		tries++
		if err == nil || !isStale(err) {
			return err
		}
		if tries >= most {
			return fmt.Errorf("%s was changed by others at each of %s: find out who changes it that often (kubectl get %s -o yaml "+
				"--show-managed-fields): %w", what, count.Of(tries, "attempt"), what, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(backoff.Step()):
		}
	}
}

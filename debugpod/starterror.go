package debugpod

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// StartError says why a debug pod does not run.
type StartError struct {
	// Reason is the kubelet's (ErrImagePull, OutOfpods, ...), or one of the Reason constants.
	Reason string
	// Message is what the API server or the kubelet says.
	Message string
	// Pulls says that time ran out while the node pulled the image.
	Pulls bool
	// Hint is what the user can do, or empty.
	Hint string
	// Err is what the API server answered, or nil.
	Err error
}

// Reasons of a StartError that are not the kubelet's.
const (
	ReasonPodSecurity      = "PodSecurity"
	ReasonQuota            = "QuotaExceeded"
	ReasonLimitRange       = "LimitRange"
	ReasonNamespaceMissing = "NamespaceMissing"
	ReasonNamespaceEnding  = "NamespaceTerminating"
	ReasonServiceAccount   = "ServiceAccountMissing"
	// An admission webhook, an admission policy, OpenShift's security constraints
	ReasonPolicy       = "DeniedByPolicy"
	ReasonForbidden    = "Forbidden"
	ReasonNameTaken    = "NameTaken"
	ReasonRejected     = "Rejected"
	ReasonNodeMissing  = "NodeMissing"
	ReasonNodeNotReady = "NodeNotReady"
	ReasonDeleted      = "Deleted"
	ReasonExited       = "Exited"
	ReasonTimeout      = "Timeout"
)

func (e *StartError) Error() string {
	text := e.Reason
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

func (e *StartError) Unwrap() error { return e.Err }

// explainCreate turns the API server's refusal to create the pod into a StartError. Errors that say nothing about the
// pod, of the network or the context, come back as they are.
func explainCreate(err error, pod *corev1.Pod) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || errors.Is(err, context.Canceled) {
		return err
	}
	ns, message := pod.Namespace, err.Error()
	says := func(parts ...string) bool {
		for _, p := range parts {
			if !strings.Contains(strings.ToLower(message), p) {
				return false
			}
		}
		return true
	}
	because := func(reason, hint string) error {
		return &StartError{Reason: reason, Message: message, Hint: hint, Err: err}
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return because(ReasonNamespaceEnding,
			fmt.Sprintf("wait until namespace %s is gone and try again, or choose another", ns))
	case apierrors.IsNotFound(err) && says("namespace"):
		return because(ReasonNamespaceMissing, fmt.Sprintf("create it: "+
			"kubectl create namespace %s && kubectl label namespace %s gpufault.dev/ledger=true pod-security.kubernetes.io/enforce=privileged",
			ns, ns))
	case says("violates podsecurity"):
		return because(ReasonPodSecurity, fmt.Sprintf(
			"the debug pod must be privileged; allow it in its namespace: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged",
			ns,
		))
	case says("denied the request"), says("denied request"), says("security context constraint"):
		return because(ReasonPolicy,
			"a policy of the cluster refuses the privileged debug pod; ask whoever runs it for an exception for namespace "+
				ns)
	case says("failed calling webhook"):
		return because(ReasonPolicy, "an admission webhook of the cluster does not work; ask whoever runs it")
	case says("exceeded quota"), says("failed quota"):
		return because(ReasonQuota,
			fmt.Sprintf("see kubectl describe quota -n %s, and raise it or use another namespace", ns))
	case isServiceAccountMissing(err):
		return because(ReasonServiceAccount,
			fmt.Sprintf("Kubernetes makes it in every namespace; see kubectl get serviceaccounts -n %s", ns))
	case apierrors.IsForbidden(err) && says("per container"), apierrors.IsForbidden(err) && says("per pod"),
		says("limit to request ratio"):
		return because(ReasonLimitRange,
			fmt.Sprintf("see kubectl describe limitrange -n %s, and change it or use another namespace", ns))
	case apierrors.IsForbidden(err) && says("cannot create resource"):
		return because(ReasonForbidden, fmt.Sprintf("you need the permission to create pods in namespace %s", ns))
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		return because(ReasonRejected, "")
	}
	return err
}

// isServiceAccountMissing: the controller makes a new namespace's default service account after some moments, and until
// then admission refuses every pod.
func isServiceAccountMissing(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

package debugpod

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// StartError describes why a debug pod is not running.
type StartError struct {
	// Reason is the kubelet's reason (ErrImagePull, OutOfpods, ...) or one of the Reason constants.
	Reason string
	// Message is the message from the API server or the kubelet.
	Message string
	// Pulls reports whether the timeout expired while the node was pulling the image.
	Pulls bool
	// Hint describes what the user can do. It may be empty.
	Hint string
	// Err is the error from the API server, or nil.
	Err error
}

// The reasons of a StartError that do not come from the kubelet.
const (
	ReasonPodSecurity      = "PodSecurity"
	ReasonQuota            = "QuotaExceeded"
	ReasonLimitRange       = "LimitRange"
	ReasonNamespaceMissing = "NamespaceMissing"
	ReasonNamespaceEnding  = "NamespaceTerminating"
	ReasonServiceAccount   = "ServiceAccountMissing"
	// ReasonPolicy is a denial by an admission webhook, an admission policy or OpenShift's security context
	// constraints.
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

// explainCreate converts the API server's rejection of the pod into a StartError. It returns errors that are not about
// the pod, such as network and context errors, unchanged.
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
			fmt.Sprintf("wait until namespace %s is deleted and try again, or specify another namespace", ns))
	case apierrors.IsNotFound(err) && says("namespace"):
		return because(ReasonNamespaceMissing, fmt.Sprintf("create it: "+
			"kubectl create namespace %s && kubectl label namespace %s gpufault.dev/ledger=true pod-security.kubernetes.io/enforce=privileged",
			ns, ns))
	case says("violates podsecurity"):
		return because(ReasonPodSecurity, fmt.Sprintf(
			"the debug pod must be privileged; allow this in its namespace: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged",
			ns,
		))
	case says("denied the request"), says("denied request"), says("security context constraint"):
		return because(ReasonPolicy,
			"a policy in the cluster denies the privileged debug pod; ask the cluster administrator for an exception for namespace "+
				ns)
	case says("failed calling webhook"):
		return because(ReasonPolicy, "an admission webhook in the cluster is failing; contact the cluster "+
			"administrator")
	case says("exceeded quota"), says("failed quota"):
		return because(ReasonQuota,
			fmt.Sprintf("see kubectl describe quota -n %s, and increase the quota or use another namespace", ns))
	case isServiceAccountMissing(err):
		return because(ReasonServiceAccount,
			fmt.Sprintf("Kubernetes creates the service account in every namespace; see kubectl get serviceaccounts -n %s", ns))
	case apierrors.IsForbidden(err) && says("per container"), apierrors.IsForbidden(err) && says("per pod"),
		says("limit to request ratio"):
		return because(ReasonLimitRange,
			fmt.Sprintf("see kubectl describe limitrange -n %s, and change the limits or use another namespace", ns))
	case apierrors.IsForbidden(err) && says("cannot create resource"):
		return because(ReasonForbidden, fmt.Sprintf("you need permission to create pods in namespace %s", ns))
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		return because(ReasonRejected, "")
	}
	return err
}

// isServiceAccountMissing reports whether the pod was rejected because the namespace has no default service account
// yet. The controller creates the account shortly after the namespace.
func isServiceAccountMissing(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

// messageDeleted is the message of ReasonDeleted.
const messageDeleted = "the debug pod was deleted by another client"

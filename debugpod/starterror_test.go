package debugpod

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func forbidden(why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "gpu-fault-x", errors.New(why))
}

// The messages are the API server's.
func TestExplainCreate(t *testing.T) {
	ending := forbidden("unable to create new content in namespace gpu-fault because it is being terminated")
	ending.(*apierrors.StatusError).ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: corev1.NamespaceTerminatingCause},
	}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
		Code:    http.StatusBadRequest,
		Message: `admission webhook "validate.kyverno.svc-fail" denied the request: policy Pod/gpu-fault/x for resource violation`}}
	policy := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil)
	policy.ErrStatus.Message =
		`pods "x" is forbidden: ValidatingAdmissionPolicy 'no-privileged' with binding 'all' denied request: no`
	for name, tc := range map[string]struct {
		err          error
		reason, hint string
	}{
		"pod security": {forbidden(
			`violates PodSecurity "baseline:latest": host namespaces (hostPID=true), privileged (container "helper" must not set securityContext.privileged=true)`,
		),
			ReasonPodSecurity,
			"kubectl label --overwrite namespace gpu-fault pod-security.kubernetes.io/enforce=privileged"},
		"quota": {
			forbidden(
				"exceeded quota: compute, requested: limits.memory=64Mi, used: limits.memory=1Gi, limited: limits.memory=1Gi",
			),
			ReasonQuota, "kubectl describe quota -n gpu-fault",
		},
		"quota wants more": {
			forbidden("failed quota: compute: must specify limits.ephemeral-storage for: helper"), ReasonQuota,
			"kubectl describe quota",
		},
		"limit range": {forbidden(
			"[minimum cpu usage per Container is 100m, but request is 10m, minimum memory usage per Container is 1Gi, but request is 16Mi]",
		), ReasonLimitRange, "limitrange"},
		"limit range, ratio": {
			forbidden("cpu max limit to request ratio per Container is 4, but provided ratio is 50.000000"),
			ReasonLimitRange, "limitrange",
		},
		"namespace missing": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "gpu-fault"), ReasonNamespaceMissing,
			"kubectl create namespace gpu-fault",
		},
		"namespace ending": {ending, ReasonNamespaceEnding, "wait"},
		"service account": {
			forbidden(`error looking up service account gpu-fault/default: serviceaccount "default" not found`),
			ReasonServiceAccount, "serviceaccounts",
		},
		"webhook": {webhook, ReasonPolicy, "exception"},
		"broken webhook": {
			apierrors.NewInternalError(
				errors.New(`failed calling webhook "x": Post "https://x": context deadline exceeded`),
			),
			ReasonPolicy, "admission webhook in the cluster is failing",
		},
		"admission policy": {policy, ReasonPolicy, "exception"},
		"OpenShift": {
			forbidden(`unable to validate against any security context constraint: [provider "anyuid": Forbidden]`),
			ReasonPolicy, "exception",
		},
		"permission": {apierrors.NewForbidden(
			schema.GroupResource{Resource: "pods"}, "",
			errors.New(`User "jane" cannot create resource "pods" in API group "" in the namespace "gpu-fault"`),
		), ReasonForbidden, "create pods"},
		"anything else":  {forbidden("no reason"), ReasonRejected, ""},
		"invalid":        {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil), ReasonRejected, ""},
		"network":        {&url.Error{Op: "Post", URL: "https://x", Err: errors.New("connection reset")}, "", ""},
		"ended":          {context.Canceled, "", ""},
		"server timeout": {apierrors.NewTimeoutError("request did not complete", 1), "", ""},
		"server error":   {apierrors.NewInternalError(errors.New("etcd")), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := explainCreate(tc.err, Pod(Spec{Run: "x", Node: "n", Namespace: "gpu-fault"}))
			if !errors.Is(got, tc.err) {
				t.Errorf("%v does not wrap its cause", got)
			}
			var start *StartError
			if !errors.As(got, &start) {
				start = &StartError{}
			}
			if start.Reason != tc.reason || !strings.Contains(start.Hint, tc.hint) {
				t.Errorf("got %q with hint %q, want %q with %q", start.Reason, start.Hint, tc.reason, tc.hint)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	waiting := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{},
			ContainerStatuses: []corev1.ContainerStatus{{Name: containerName,
				State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
				}}}}
	}
	ended := func(phase corev1.PodPhase, code int32, reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: containerName,
			State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message},
			}}}}
	}
	for name, tc := range map[string]struct {
		status         corev1.PodStatus
		running        bool
		reason, hint   string
		waits, exactly string
	}{
		"new": {corev1.PodStatus{Phase: corev1.PodPending}, false, "", "", "has not processed the pod", ""},
		"seen": {
			corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{}}, false, "", "", "is preparing", "",
		},
		"creating": {waiting("ContainerCreating", ""), false, "", "", "ContainerCreating", ""},
		"running":  {running(), true, "", "", "", ""},
		"pull":     {waiting("ErrImagePull", "not found"), false, "ErrImagePull", "--image", "", "not found"},
		"runtime restarts": {waiting(
			"ImageInspectError",
			`rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix /run/containerd/containerd.sock"`,
		), false, "", "", "ImageInspectError", ""},
		"registry is away": {
			waiting("ErrImagePull", "rpc error: code = Unavailable desc = failed to pull: 503"), false, "ErrImagePull",
			"--image", "", "503",
		},
		"pull, later": {
			waiting("ImagePullBackOff", "Back-off"), false, "ImagePullBackOff", "--image-pull-secret", "", "",
		},
		"name":  {waiting("InvalidImageName", ""), false, "InvalidImageName", "correct", "", ""},
		"never": {waiting("ErrImageNeverPull", ""), false, "ErrImageNeverPull", "load the image onto the node", "", ""},
		"config": {
			waiting("CreateContainerConfigError", `secret "x" not found`), false, "CreateContainerConfigError",
			"does not exist", "", "",
		},
		"create": {waiting("CreateContainerError", "x"), false, "CreateContainerError", "runtime", "", ""},
		"run":    {waiting("RunContainerError", "x"), false, "RunContainerError", "runtime", "", ""},
		"not admitted": {
			corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Node didn't have enough resource: pods",
			},
			false, "OutOfpods", "free some resources", "", "",
		},
		"evicted": {
			corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}, false, "Evicted", "pressure",
			"", "",
		},
		"Windows": {
			corev1.PodStatus{Phase: corev1.PodFailed, Reason: "PodOSNotSupported"}, false, "PodOSNotSupported", "Linux",
			"", "",
		},
		"failed, no reason": {corev1.PodStatus{Phase: corev1.PodFailed}, false, "Failed", "", "", ""},
		"deadline": {
			corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"}, false, "DeadlineExceeded",
			"--timeout", "", "",
		},
		"architecture": {
			ended(corev1.PodFailed, 255, "Error", "exec /bin/sh: exec format error"), false, "Error",
			"not for the node's architecture", "", "",
		},
		"no shell": {
			ended(corev1.PodFailed, 128, "StartError", `exec: "sh": executable file not found in $PATH`), false,
			"StartError", "no shell", "", "",
		},
		"ended well": {ended(corev1.PodSucceeded, 0, "Completed", ""), false, "Completed", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Pod(Spec{Run: "x", Node: "n", Namespace: "gpu-fault"})
			pod.Status = tc.status
			v := judge(pod)
			failure := &StartError{}
			if v.failure != nil {
				failure = v.failure
			}
			if v.running != tc.running || failure.Reason != tc.reason || !strings.Contains(failure.Hint, tc.hint) ||
				!strings.Contains(v.waiting, tc.waits) || !strings.Contains(failure.Message, tc.exactly) {
				t.Errorf("got running %v, %+v, waiting %q", v.running, failure, v.waiting)
			}
		})
	}
	gone := Pod(Spec{Run: "x", Node: "n", Namespace: "gpu-fault"})
	gone.Status, gone.DeletionTimestamp = running(), &metav1.Time{}
	if v := judge(gone); v.running || v.failure == nil || v.failure.Reason != ReasonDeleted {
		t.Errorf("a pod that is being deleted: %+v", v)
	}
}

func running() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{},
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerName,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
}

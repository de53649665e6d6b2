// Package debugpod runs the helper on a node in a privileged pod, and always deletes the pod afterwards.
//
//	session, err := runner.Start(ctx, spec)
//	defer session.Close(ctx)
//	info, err := session.Inspect(ctx, api.Inspect{})
package debugpod

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// DefaultImage contains what a debug pod needs: a shell with head, wc and chmod. Its registry has no pull limits.
// Because the image runs as root, it is pinned to the digest that the Kubernetes tests use
// (kubernetes/kubernetes#121191).
const DefaultImage = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9"

// The labels of every debug pod. They are used to find leftover pods.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	LabelRun       = "gpufault.dev/run"
	// Name is the value of LabelName and LabelManagedBy.
	Name = "kubectl-gpu-fault"
)

const (
	containerName = "helper"
	defaultMemory = "128Mi"
	// DiagnoseMemory is the memory limit required by Session.Diagnose, because nvidia-smi and journalctl run in
	// addition to the helper, whose response may be large. With a lower limit, the kernel could log an OOM kill, which
	// the next Diagnose would find.
	DiagnoseMemory = "256Mi"
	// defaultDeadline is the default of Spec.Deadline.
	defaultDeadline = 10 * time.Minute
)

// Spec describes a debug pod. Run, Node and Namespace are required.
type Spec struct {
	Run       string // ID of the run; also the value of LabelRun
	Node      string
	Namespace string
	// Arch is the architecture in the node's status, such as amd64 or arm64. It selects the helper.
	Arch string

	Image       string            // defaults to DefaultImage
	PullPolicy  corev1.PullPolicy // defaults to IfNotPresent
	PullSecrets []string
	// HasHelper means that the image contains the helper, which is then not uploaded. Such an image has no shell.
	HasHelper bool
	// AnyHelper accepts an image that contains the helper of another build, if that helper uses the same protocol.
	// AnyHelper is used to undo the changes made by that build.
	AnyHelper bool
	// Deadline is the maximum lifetime of the pod in whole seconds. It applies if the pod is not deleted. The default
	// is 10 minutes.
	Deadline time.Duration
	// Memory is the memory limit. The default is 128Mi.
	Memory string
	// Stays is set for a pod whose termination ends a fault. Such a pod has no deadline, and runs until it is deleted.
	Stays bool
	// Owner is the record of the run. Deleting the record deletes the pod. Both must be in the same namespace.
	Owner *metav1.OwnerReference
}

// PodName returns the name of a run's debug pod on a node.
func PodName(run, node string) string {
	sum := sha256.Sum256([]byte(node))
	return "gpu-fault-" + strings.ToLower(run) + "-" + hex.EncodeToString(sum[:4])
}

// Pod returns the pod for a Spec.
//
// The pod bypasses the scheduler by setting the node name, so it also runs on tainted and cordoned nodes. It is
// privileged and shares the node's PID namespace: the helper accesses the node's files through /proc/1/root, so
// the pod needs no volume, which would delay its start, and it can access /dev/kmsg. The pod does not use the host
// network, because it needs no network access to the node, and a privileged pod should have only the access that it
// needs. It has no cluster credentials.
func Pod(s Spec) *corev1.Pod {
	deadline := int64(s.deadline() / time.Second)
	limit := &deadline
	if s.Stays {
		limit, deadline = nil, math.MaxInt32 // 68 years
	}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      PodName(s.Run, s.Node),
			Namespace: s.Namespace,
			Labels:    map[string]string{LabelName: Name, LabelManagedBy: Name, LabelRun: s.Run},
		},
		Spec: corev1.PodSpec{
			NodeName: s.Node,
			// This makes a Windows node reject the pod.
			OS:                           &corev1.PodOS{Name: corev1.Linux},
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			HostPID:                      true,
			RestartPolicy:                corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:        limit,
			AutomountServiceAccountToken: new(false),
			EnableServiceLinks:           new(false),
			// The main process exits immediately on SIGTERM. The grace period matters only on an overloaded node.
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers:                    []corev1.Container{s.container(deadline)},
		},
	}
	for _, secret := range s.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if s.Owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*s.Owner}
	}
	return pod
}

func (s Spec) container(deadline int64) corev1.Container {
	return corev1.Container{
		Name:            containerName,
		Image:           s.image(),
		ImagePullPolicy: s.pullPolicy(),
		Command:         s.stayAlive(deadline),
		SecurityContext: &corev1.SecurityContext{
			Privileged: new(true),
			RunAsUser:  new(int64(0)), // overrides the image's user
			RunAsGroup: new(int64(0)),
		},
		// The values are small enough for a full node, and all of them are set, because a quota may require them. The
		// helper uses about 10 MB of memory. With a lower CPU limit, it would be throttled most of the time.
		Resources: corev1.ResourceRequirements{
			Requests: resources("10m", "16Mi"),
			Limits:   resources("500m", cmp.Or(s.Memory, defaultMemory)),
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// stayAlive returns a command that keeps the container running for some seconds. All work is done through exec.
func (s Spec) stayAlive(seconds int64) []string {
	if s.HasHelper {
		return []string{api.Program, "wait", fmt.Sprint(seconds)}
	}
	// A signal interrupts `wait`, but not a sleep that runs as PID 1.
	return []string{"sh", "-c", fmt.Sprintf("trap 'exit 0' TERM INT; sleep %d & wait", seconds)}
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
}

func (s Spec) image() string {
	if s.Image == "" {
		return DefaultImage
	}
	return s.Image
}

func (s Spec) pullPolicy() corev1.PullPolicy {
	if s.PullPolicy == "" {
		return corev1.PullIfNotPresent
	}
	return s.PullPolicy
}

func (s Spec) deadline() time.Duration {
	if s.Deadline <= 0 {
		return defaultDeadline
	}
	return max(s.Deadline.Round(time.Second), time.Second)
}

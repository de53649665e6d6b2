// Package debugpod brings the helper to a node in a privileged pod, lets it work there, and always deletes the pod.
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

// DefaultImage has what a debug pod needs, a shell with head, wc and chmod, and is on a registry without pull limits.
// It runs as root, so that a tag is not enough: the digest is the one that Kubernetes' own tests pin
// (kubernetes/kubernetes#121191).
const DefaultImage = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9"

// Labels of every debug pod, by which leftovers are found.
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
	// DiagnoseMemory is what Session.Diagnose needs at most: nvidia-smi and journalctl run beside the helper, whose
	// answer may be large. Were it too little the kernel would log an OOM kill, which the next Diagnose would find.
	DiagnoseMemory = "256Mi"
	// defaultDeadline is how long a debug pod may live when its Spec does not say.
	defaultDeadline = 10 * time.Minute
)

// Spec says which debug pod is wanted. Run, Node and Namespace are required.
type Spec struct {
	Run       string // the run's ID; also the value of LabelRun
	Node      string
	Namespace string
	// Arch is the node's, as its status says: amd64, arm64. It chooses the helper.
	Arch string

	Image       string            // DefaultImage when empty
	PullPolicy  corev1.PullPolicy // IfNotPresent when empty
	PullSecrets []string
	// HasHelper says that the image is ours, and has the helper inside: it has no shell, and nothing is streamed to it.
	HasHelper bool
	// AnyHelper takes the image's helper also when it is another build's that speaks the same protocol: to undo what
	// that build did.
	AnyHelper bool
	// Deadline is how long the pod lives at most, though nobody deletes it: 10 minutes when zero. Counted in whole
	// seconds.
	Deadline time.Duration
	// Memory is the limit of its memory: 128Mi when empty.
	Memory string
	// Stays is for a pod whose end ends a fault: it has no deadline, and lives until it is deleted.
	Stays bool
	// Owner, the run's record, takes the pod with it when it is deleted. It must be in the same namespace.
	Owner *metav1.OwnerReference
}

// PodName returns the name of a run's debug pod on a node.
func PodName(run, node string) string {
	sum := sha256.Sum256([]byte(node))
	return "gpu-fault-" + strings.ToLower(run) + "-" + hex.EncodeToString(sum[:4])
}

// Pod returns the pod of a Spec.
//
// It is on the node by name, past the scheduler, tainted or cordoned as it may be. It shares the PID namespace of the
// node and is privileged: through /proc/1/root the helper sees the node's files, so no volume is mounted (which would
// also make it start later), and /dev/kmsg is there. It does not share the network: nothing on the node is reached over
// it, and a privileged pod should have no more than it uses. It has no credentials of the cluster.
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
			// A Windows node refuses it, with that as the reason
			OS:                           &corev1.PodOS{Name: corev1.Linux},
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			HostPID:                      true,
			RestartPolicy:                corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:        limit,
			AutomountServiceAccountToken: new(false),
			EnableServiceLinks:           new(false),
			// The main process ends at once when it is told to; this is for a node that is too busy to tell it.
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
			RunAsUser:  new(int64(0)), // whatever the image says
			RunAsGroup: new(int64(0)),
		},
		// Small enough for a full node, and all of them given, for quotas that ask for it. The helper uses about 10 MB;
		// less CPU would make it wait for most of every 100 ms.
		Resources: corev1.ResourceRequirements{
			Requests: resources("10m", "16Mi"),
			Limits:   resources("500m", cmp.Or(s.Memory, defaultMemory)),
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// stayAlive only keeps the container alive, for some seconds: all work is done by exec.
func (s Spec) stayAlive(seconds int64) []string {
	if s.HasHelper {
		return []string{api.Program, "wait", fmt.Sprint(seconds)}
	}
	// `wait` can be interrupted by a signal, sleep cannot when it has PID 1.
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

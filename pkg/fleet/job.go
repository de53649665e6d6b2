package fleet

import (
	"math"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Settings are the settings of the Job.
type Settings struct {
	Namespace string
	Summary   string // summary of the fault
	// Command is the program and its arguments, the same for all shards.
	Command []string

	Image       string
	PullPolicy  corev1.PullPolicy
	PullSecrets []string
	Arch        string // architecture of the program in the image

	// Pods is the maximum number of pods that run at the same time.
	Pods int
	// Limit is the maximum time that a pod may take for its shard, and Cleanup is the maximum time that it may take to
	// undo its changes.
	Limit, Cleanup time.Duration
}

const (
	container = "fault"
	// Directory is the directory in which the pods mount the plan.
	Directory = "/fleet"
	// keep is the time that the Job and its plan remain if the client has died.
	keep = time.Hour
	// waits is the time that the pods of a Job may wait to be scheduled.
	waits = 10 * time.Minute
	// attempts limits the number of a shard's pods that fail before they start, such as those rejected by a full node.
	// A program that has started is never repeated; see failurePolicy.
	attempts = 3
	// nobody is the user that runs the program, which needs no files of its own.
	nobody = 65532
)

// Job returns the Indexed Job that runs the plan.
func Job(p Plan, s Settings) *batchv1.Job {
	shards, pods := int32(len(p.Shards)), int32(min(s.Pods, len(p.Shards)))
	rounds := (shards + pods - 1) / pods
	limit := waits + time.Duration(rounds)*s.Limit
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: p.ID, Namespace: s.Namespace, Labels: labels(p.ID),
			Annotations: map[string]string{ledger.AnnotationSummary: s.Summary},
		},
		Spec: batchv1.JobSpec{
			CompletionMode: new(batchv1.IndexedCompletion), Completions: &shards, Parallelism: &pods,
			BackoffLimitPerIndex:    new(int32(attempts)),
			PodFailurePolicy:        failurePolicy(),
			ActiveDeadlineSeconds:   new(min(int64(limit.Seconds()), math.MaxInt32)),
			TTLSecondsAfterFinished: new(int32(keep.Seconds())),
			Template:                template(p, s),
		},
	}
}

// failurePolicy retries pods that were disrupted, for example by an eviction, or killed. An exit code of the program
// itself is a result. A replacement pod finds the record of its shard. It does not inject again, and reverts what its
// predecessor had not finished.
func failurePolicy() *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
			},
		},
		{
			Action: batchv1.PodFailurePolicyActionFailIndex,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: new(container), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values: []int32{1, 2, 130},
			},
		},
	}}
}

func template(p Plan, s Settings) corev1.PodTemplateSpec {
	// On SIGTERM, the program undoes the steps in progress, then all others, and records the results.
	grace := int64((2*s.Cleanup + 90*time.Second).Seconds())
	spec := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ServiceAccountName:            ledger.FleetAccount,
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: &grace,
		NodeSelector:                  map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: s.Arch},
		Affinity:                      awayFromGPUs(),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(nobody)), RunAsGroup: new(int64(nobody)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: container, Image: s.Image, ImagePullPolicy: s.PullPolicy, Command: s.Command,
			// The end of the log contains the reason for a failure.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
				},
				Limits: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"),
				},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "plan", MountPath: Directory, ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{{Name: "plan", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: p.ID}},
		}}},
	}
	for _, secret := range s.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{ledger.LabelFleet: p.ID},
			// An autoscaler that removes the pod's node would interrupt the run.
			Annotations: map[string]string{
				"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true",
			},
		},
		Spec: spec,
	}
}

// awayFromGPUs prefers nodes without GPUs, because detectors may drain and reboot the nodes on which the fault is
// injected.
func awayFromGPUs() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "nvidia.com/gpu.present", Operator: corev1.NodeSelectorOpDoesNotExist},
			}},
		}},
	}}
}

// Objects returns the Job and the ConfigMap of a plan, as Start creates them.
func Objects(p Plan, s Settings) (*batchv1.Job, *corev1.ConfigMap, error) {
	plan, err := p.configMap(s.Namespace)
	if err != nil {
		return nil, nil, err
	}
	return Job(p, s), plan, nil
}

// firstLine returns the first line of a text without surrounding white space.
func firstLine(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(first)
}

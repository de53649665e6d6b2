package realxid

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

const (
	// DefaultImage contains glibc and everything else that libcuda needs from a C library. node-problem-detector is
	// based on the same image.
	DefaultImage = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.7@sha256:368abceecc1308e0913a6fd5ab89a513ee4268becefc2a82dbe616462b29a46b"
	// GPUResource is the resource that the pod requests.
	GPUResource = "nvidia.com/gpu"
	// Container is the name of the pod's container.
	Container = "crash"

	// programName is the program's file name, and therefore the name of its process in the driver's line.
	programName = "gpufault-crash"
	programDir  = "/gpufault"
	// nobody is the user that runs the program. The program needs no privileges, because the driver's device files are
	// accessible to all users.
	nobody = 65534
)

// Spec describes the pod that causes an error on a GPU on a node.
type Spec struct {
	XID          int
	Node         string
	Namespace    string
	Image        string
	Pull         corev1.PullPolicy
	RuntimeClass string // empty means the node's default
	Program      []byte // for the node's architecture
	// Deadline is the time after which the kubelet stops the pod, even if the client has died.
	Deadline time.Duration
}

// Name returns the name of the pod and of its ConfigMap. A node has at most one of each.
func (s Spec) Name() string { return "gpu-fault-xid-" + patch.Sum([]byte(s.Node))[:10] }

// Manifests returns the ConfigMap with the program, and the pod.
func (s Spec) Manifests() ([]*unstructured.Unstructured, error) {
	meta := metav1.ObjectMeta{Name: s.Name(), Namespace: s.Namespace}
	var all []*unstructured.Unstructured
	for _, object := range []any{
		&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta,
			BinaryData: map[string][]byte{programName: s.Program},
		},
		&corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta, Spec: s.pod()},
	} {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		delete(fields, "status")
		all = append(all, &unstructured.Unstructured{Object: fields})
	}
	return all, nil
}

// pod returns a pod that Pod Security "restricted" admits. The scheduler places the pod, so that the GPU is counted and
// the device plugin allocates it.
func (s Spec) pod() corev1.PodSpec {
	one := corev1.ResourceList{GPUResource: resource.MustParse("1")}
	small := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		GPUResource: resource.MustParse("1"),
	}
	pod := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ActiveDeadlineSeconds:         new(int64(max(1, s.Deadline.Seconds()))),
		TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
					Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{s.Node},
				}}}},
			},
		}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(nobody)), RunAsGroup: new(int64(nobody)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: Container, Image: s.Image, ImagePullPolicy: s.Pull,
			Command: []string{programDir + "/" + programName, fmt.Sprint(s.XID)},
			Env: []corev1.EnvVar{
				{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "compute,utility"},
				{Name: "CUDA_CACHE_DISABLE", Value: "1"}, // the user has no home directory
			},
			Resources:                corev1.ResourceRequirements{Limits: one, Requests: small},
			VolumeMounts:             []corev1.VolumeMount{{Name: "program", MountPath: programDir, ReadOnly: true}},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
		Volumes: []corev1.Volume{{Name: "program", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: s.Name()}, DefaultMode: new(int32(0o555)),
			},
		}}},
	}
	if s.RuntimeClass != "" {
		pod.RuntimeClassName = &s.RuntimeClass
	}
	return pod
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// probeTimeout is the time to wait for the probe pod to fail. The kubelet must first reconnect to containerd.
const probeTimeout = 45 * time.Second

// probe tests a runtime handler with a pod.
type probe struct {
	client    kubernetes.Interface
	namespace string
	class     string // RuntimeClass
	image     string
	symptom   string // substring of the expected event
}

// newProbe returns a probe that uses a RuntimeClass with the handler.
func newProbe(ctx context.Context, cluster *kube.Cluster, namespace string, b *breaking) (*probe, error) {
	classes, err := cluster.Client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("--probe: list the RuntimeClasses: %w", kube.Explain(err))
	}
	var others []string
	for _, class := range classes.Items {
		if class.Handler == b.handler {
			return &probe{
				client: cluster.Client, namespace: namespace, class: class.Name, image: b.Pods.Image,
				symptom: strings.ReplaceAll(b.info.Symptom, "nvidia", b.handler),
			}, nil
		}
		others = append(others, class.Name+" ("+class.Handler+")")
	}
	return nil, fmt.Errorf("--probe: no RuntimeClass has the handler %q; RuntimeClasses: %s",
		b.handler, strings.Join(append(others, "no others"), ", "))
}

// run creates a pod on the node, waits for the event that reports why the pod does not start, and deletes the pod. It
// fails if the pod starts.
func (p *probe) run(ctx context.Context, run ledger.Run, nodeName string) (evidence ledger.Evidence, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errors.New("timed out"))
	defer cancel()
	pods := p.client.CoreV1().Pods(p.namespace)
	pod, err := pods.Create(ctx, p.pod(run, nodeName), metav1.CreateOptions{})
	if err != nil {
		return evidence, fmt.Errorf("create the probe pod: %w", err)
	}
	defer func() {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		gone := pods.Delete(after, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if gone != nil && !apierrors.IsNotFound(gone) {
			err = errors.Join(err, fmt.Errorf("delete the probe pod %s: %w", pod.Name, gone))
		}
	}()
	said := "nothing"
	for {
		now, getErr := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if getErr == nil && (now.Status.Phase == corev1.PodRunning || now.Status.Phase == corev1.PodSucceeded) {
			return evidence,
				fmt.Errorf("a pod with runtime class %s started: the fault has no effect", p.class)
		}
		selector := fields.Set{"involvedObject.uid": string(pod.UID)}.AsSelector().String()
		events, listErr := p.client.CoreV1().Events(p.namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if listErr == nil {
			for _, e := range events.Items {
				if e.Type != corev1.EventTypeWarning {
					continue
				}
				if said = e.Reason + ": " + e.Message; strings.Contains(e.Message, p.symptom) {
					return ledger.Evidence{
						Source: "event of a pod with runtime class " + p.class, Time: e.LastTimestamp.UTC(), Text: said,
					}, nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return evidence,
				fmt.Errorf("the probe pod does not show the fault (%w); last event: %s", context.Cause(ctx), said)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// pod returns a small pod that exits immediately if it starts.
func (p *probe) pod(run ledger.Run, nodeName string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "gpu-fault-probe-", Namespace: p.namespace,
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: run.ID},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName, RuntimeClassName: &p.class, RestartPolicy: corev1.RestartPolicyNever,
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: new(false), ActiveDeadlineSeconds: new(int64(120)),
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "probe", Image: p.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"true"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
				}},
			}},
		},
	}
	if owner := run.OwnerReference(); owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return pod
}

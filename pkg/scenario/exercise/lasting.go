package exercise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// lasting checks whether a working workload would also work in new pods, with the settings that new pods get and
// without help from the candidate. If the exercise has already failed, nothing is checked.
func (g *grading) lasting(ctx context.Context) error {
	if !g.clean() || !g.report.fixedGate(g.spoiled).OK {
		return nil
	}
	onNode, err := g.lab.workers(ctx, g.e.Namespaces)
	if err != nil {
		return err
	}
	if err := g.outdated(ctx, onNode, g.optionalAtBegin()); err != nil {
		return err
	}
	g.strangers(ctx, onNode)
	slices.Sort(g.report.NotCompared)
	sorting.Func(g.report.Collateral,
		func(a, b baseline.Difference) int { return strings.Compare(a.String(), b.String()) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// strangers checks on the nodes whether the processes in the pods were started by the pods' programs. If they were not,
// the candidate may have started them with kubectl exec, which makes a broken workload look repaired until the pod
// terminates.
func (g *grading) strangers(ctx context.Context, onNode map[string][]corev1.Pod) {
	if g.lab.Faults == nil {
		return
	}
	var wg sync.WaitGroup
	var lock sync.Mutex
	for node, pods := range onNode {
		wg.Go(func() {
			uids := make([]string, 0, len(pods))
			for _, pod := range pods {
				uids = append(uids, string(pod.UID))
			}
			found, err := g.lab.Faults.Strangers(ctx, node, uids, g.r.Sealed.Grade.OwnSessions)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				g.report.NotCompared = append(g.report.NotCompared,
					fmt.Sprintf("processes in the pods on node %s: %v", node, err))
				return
			}
			for _, pod := range pods {
				use := found[string(pod.UID)]
				if len(use.Strangers) > 0 {
					g.spoil(pod, strings.Join(use.Strangers, "; ")+"; terminate the process or replace the pod, and grade again")
				}
				if use.Unseen != "" && g.lab.running(ctx, pod) {
					g.report.NotCompared = append(g.report.NotCompared,
						fmt.Sprintf("processes in pod %s/%s: %s", pod.Namespace, pod.Name, use.Unseen))
				}
			}
		})
	}
	wg.Wait()
}

// running reports whether a pod is still running: the processes of a pod that has terminated in the meantime do not
// matter. If the pod cannot be read, it counts as running.
func (l *Lab) running(ctx context.Context, pod corev1.Pod) bool {
	now, err := l.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return now.UID == pod.UID && now.DeletionTimestamp == nil && now.Status.Phase == corev1.PodRunning
}

// spoil adds a pod, with the reason, to the results that fail the grade. The same reason is added only once.
func (g *grading) spoil(pod corev1.Pod, why string) {
	d := baseline.Difference{
		Ref:  scenario.Ref{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		Kind: baseline.Changed, Note: why,
	}
	if !slices.ContainsFunc(g.report.Collateral,
		func(other baseline.Difference) bool { return other.String() == d.String() }) {
		g.report.Collateral = append(g.report.Collateral, d)
	}
}

// workers returns the running pods that a controller created in the namespaces, by node.
func (l *Lab) workers(ctx context.Context, namespaces []string) (map[string][]corev1.Pod, error) {
	onNode := map[string][]corev1.Pod{}
	for _, namespace := range namespaces {
		list, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list pods in namespace %s: %w", namespace, err)
		}
		for _, pod := range list.Items {
			if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(&pod) != nil {
				onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
			}
		}
	}
	return onNode, nil
}

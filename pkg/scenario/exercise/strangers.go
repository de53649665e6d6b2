package exercise

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// strangers looks whether what runs is what the next pods would be: with the settings that they would get, and without
// help. On the nodes, it looks whether what runs in the pods of workloads was started by their programs. Otherwise, the
// candidate may have started it with kubectl exec: it makes a broken workload look repaired, and ends with the pod.
func (g *grading) strangers(ctx context.Context) error {
	if !g.clean() || !g.report.fixedGate(g.spoiled).OK {
		return nil
	}
	onNode, err := g.lab.workers(ctx, g.e.Namespaces)
	if err != nil {
		return err
	}
	if err := g.outdated(ctx, onNode); err != nil {
		return err
	}
	if g.lab.Faults == nil || g.r.Sealed.Grade.OwnSessions {
		return nil
	}
	var wg sync.WaitGroup
	var lock sync.Mutex
	for node, pods := range onNode {
		wg.Go(func() {
			uids := make([]string, 0, len(pods))
			for _, pod := range pods {
				uids = append(uids, string(pod.UID))
			}
			found, err := g.lab.Faults.Strangers(ctx, node, uids)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				g.report.NotCompared = append(g.report.NotCompared,
					fmt.Sprintf("processes in the pods on node %s: %v", node, err))
				return
			}
			for _, pod := range pods {
				if all := found[string(pod.UID)]; len(all) > 0 {
					g.spoil(pod, strings.Join(all, "; ")+": end it or replace the pod, and grade again")
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(g.report.NotCompared)
	slices.SortFunc(g.report.Collateral,
		func(a, b baseline.Difference) int { return strings.Compare(a.String(), b.String()) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// outdated adds pods whose environment comes from a ConfigMap or Secret that was changed or deleted after their start:
// the next pod gets other values than the one that works.
func (g *grading) outdated(ctx context.Context, onNode map[string][]corev1.Pod) error {
	changed := map[scenario.Ref]written{}
	for _, pods := range onNode {
		for _, pod := range pods {
			for ref, optional := range sources(pod) {
				at, known := changed[ref]
				if !known {
					var err error
					if at, err = g.lab.written(ctx, ref); apierrors.IsForbidden(err) {
						g.report.NotCompared = append(g.report.NotCompared, err.Error())
					} else if err != nil {
						return err
					}
					changed[ref] = at
				}
				switch {
				case at.deleted && !optional:
					g.spoil(pod, fmt.Sprintf("its environment comes from %s %s, which was deleted", ref.Kind, ref.Name))
				case at.after(pod):
					g.spoil(pod, fmt.Sprintf("its environment comes from %s %s, which was changed after its start: replace the pod, "+
						"and grade again", ref.Kind, ref.Name))
				}
			}
		}
	}
	return nil
}

// spoil adds a pod to what fails the grade, with the reason.
func (g *grading) spoil(pod corev1.Pod, why string) {
	g.report.Collateral = append(g.report.Collateral, baseline.Difference{
		Ref:  scenario.Ref{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		Kind: baseline.Changed, Note: why,
	})
}

// sources returns the ConfigMaps and Secrets from which a pod's environment comes, and whether they may be missing.
func sources(pod corev1.Pod) map[scenario.Ref]bool {
	found := map[scenario.Ref]bool{}
	add := func(kind, name string, optional *bool) {
		ref := scenario.Ref{APIVersion: "v1", Kind: kind, Namespace: pod.Namespace, Name: name}
		was, known := found[ref]
		found[ref] = optional != nil && *optional && (was || !known)
	}
	for _, container := range pod.Spec.Containers {
		for _, from := range container.EnvFrom {
			if from.ConfigMapRef != nil {
				add(kindConfigMap, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				add(kindSecret, from.SecretRef.Name, from.SecretRef.Optional)
			}
		}
		for _, env := range container.Env {
			switch {
			case env.ValueFrom == nil:
			case env.ValueFrom.ConfigMapKeyRef != nil:
				add(kindConfigMap, env.ValueFrom.ConfigMapKeyRef.Name, env.ValueFrom.ConfigMapKeyRef.Optional)
			case env.ValueFrom.SecretKeyRef != nil:
				add(kindSecret, env.ValueFrom.SecretKeyRef.Name, env.ValueFrom.SecretKeyRef.Optional)
			}
		}
	}
	return found
}

// written is when an object was last written: the time has seconds, and the version orders writes within one.
type written struct {
	at      time.Time
	version uint64
	deleted bool
}

// after reports whether the object was written after a pod had read it, when its container was created.
func (w written) after(pod corev1.Pod) bool {
	// The container's start is by the clock of the node, the pod's creation by that of the API server.
	read := pod.CreationTimestamp.Time
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil && s.State.Running.StartedAt.After(read) {
			read = s.State.Running.StartedAt.Time
		}
	}
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64) // of its last status: it was ready
	return w.at.After(read) || w.at.Equal(read) && err == nil && w.version > version
}

// written returns when a ConfigMap or Secret was last written.
func (l *Lab) written(ctx context.Context, ref scenario.Ref) (written, error) {
	var found metav1.Object
	var err error
	if ref.Kind == kindSecret {
		found, err = l.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	} else {
		found, err = l.Client.CoreV1().ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return written{deleted: true}, nil
	case err != nil:
		return written{}, fmt.Errorf("get %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
	}
	last := written{at: found.GetCreationTimestamp().Time}
	last.version, _ = strconv.ParseUint(found.GetResourceVersion(), 10, 64)
	for _, entry := range found.GetManagedFields() {
		if entry.Time != nil && entry.Time.After(last.at) {
			last.at = entry.Time.Time
		}
	}
	return last, nil
}

// workers returns the running pods that a controller created in the namespaces, by node.
func (l *Lab) workers(ctx context.Context, namespaces []string) (map[string][]corev1.Pod, error) {
	onNode := map[string][]corev1.Pod{}
	for _, namespace := range namespaces {
		list, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		for _, pod := range list.Items {
			if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(&pod) != nil {
				onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
			}
		}
	}
	return onNode, nil
}

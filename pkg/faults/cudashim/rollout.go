package cudashim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Rollout is the progress of a workload's pods after a change to its templates.
type Rollout struct {
	// Done reports whether all pods have the shim and have started, and no pod from a changed template is running
	// without the shim.
	Done bool
	// Later reports whether waiting is pointless, because pods get the shim only when the next job starts, or when the
	// user deletes pods or resumes the rollout.
	Later bool
	// Held reports whether the workload's controller keeps old pods because new ones crash. If the fault is active from
	// the start, the rollout does not progress beyond this point.
	Held  bool
	Want  int // desired pods; -1 if unknown for the kind
	New   int // pods with the shim
	Ready int // pods with the shim that have started
	Old   int // pods without the shim
	// Pods are the pods with the shim.
	Pods []corev1.Pod
	// Text describes the progress in one line. Problems are the reasons why the rollout does not continue.
	Text     string
	Problems []string
}

// Rollout returns the progress of the pods.
func (c *Cluster) Rollout(ctx context.Context, d *Data) (*Rollout, error) {
	w := d.workload()
	object, err := c.resource(w).Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", d.Ref(), err)
	}
	now := &Workload{Object: object, Resource: w.Resource, Templates: Templates(object)}
	list, err := c.Client.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w", d.Namespace, err)
	}
	r := &Rollout{Want: wanted(object)}
	crashes := false
	owners := &owners{cluster: c, namespace: d.Namespace, seen: map[types.UID]bool{object.GetUID(): true}}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if carries(&pod, d.ConfigMap) {
			if lingers(&pod, r.Want >= 0 || d.Replaced == Rolling) {
				r.Problems = append(r.Problems,
					fmt.Sprintf("pod %q has terminated (%s) and is not counted", pod.Name, PodState(&pod)))
				continue
			}
			r.New++
			r.Pods = append(r.Pods, pod)
			crashes = crashes || hasCrashed(&pod)
			if isUp(&pod) {
				r.Ready++
			} else if state := PodState(&pod); state != string(corev1.PodPending) &&
				state != string(corev1.PodRunning) {
				r.Problems = append(r.Problems, fmt.Sprintf("pod %q: %s", pod.Name, state))
			}
			continue
		}
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !over && now.madeFrom(&pod, d) && owners.lead(ctx, pod.OwnerReferences) {
			r.Old++
		}
	}
	r.Held = crashes && r.New == r.Ready
	r.judge(now, d)
	return r, nil
}

// lingers reports whether a pod has terminated and another pod takes its place. If the controller keeps pods running,
// this applies to any terminated pod; otherwise, only to a pod that never started because its kubelet rejected it.
// Terminated pods of a Job have completed their work.
func lingers(pod *corev1.Pod, keptUp bool) bool {
	switch pod.Status.Phase {
	case corev1.PodFailed:
		return keptUp || len(pod.Status.ContainerStatuses) == 0
	case corev1.PodSucceeded:
		return keptUp
	}
	return false
}

func (r *Rollout) judge(w *Workload, d *Data) {
	status := func(name string) int64 {
		n, _ := kubeedit.Get(w.Object.Object, kubeedit.Fields("status", name))
		i, _ := n.(int64)
		return i
	}
	r.Text = fmt.Sprintf("%s with the shim (%d started), %d without", count.Of(r.New, "pod"), r.Ready, r.Old)
	if d.Replaced == Unknown && r.New == 0 && r.Old > 0 {
		r.Text += "; if the controller does not replace the pods, delete them"
	}
	switch {
	case d.Replaced == NextJob:
		r.Later, r.Text = true, "the next job gets the shim"
	case d.Replaced == Paused && r.New == 0:
		r.Later, r.Text = true, "the rollout is paused: pods get the shim when you resume it"
	case d.Replaced == OnDelete && r.Old > 0:
		r.Later, r.Text = r.New == 0, r.Text+"; pods get the shim when you delete them"
		r.Done = r.New > 0 && r.New == r.Ready
	case r.Want == 0:
		r.Later, r.Text = true, "the workload is scaled to 0: future pods get the shim"
	case r.New == 0 || r.Ready < r.New || r.Old > 0 || r.New < r.Want:
	case status("observedGeneration") > 0 && status("observedGeneration") < w.Object.GetGeneration():
	default:
		r.Done = true
	}
}

// wanted returns the desired number of pods for Kubernetes' own kinds, and -1 for others.
func wanted(object *unstructured.Unstructured) int {
	at := kubeedit.Path(nil)
	switch group, kind := object.GroupVersionKind().Group, object.GetKind(); {
	case group == "apps" && kind == "DaemonSet":
		at = kubeedit.Fields("status", "desiredNumberScheduled")
	case group == "apps", group == "" && kind == "ReplicationController":
		at = kubeedit.Fields("spec", "replicas")
	}
	if n, ok := kubeedit.Get(object.Object, at); ok && at != nil {
		if n, ok := n.(int64); ok {
			return int(n)
		}
	}
	return -1
}

// madeFrom reports whether a pod was created from one of the changed templates and not from another template of the
// same object. It compares images and commands, because containers of several templates often have the same names.
func (w *Workload) madeFrom(pod *corev1.Pod, d *Data) bool {
	changed, other := false, false
	for _, t := range w.Templates {
		if len(w.Templates) > 1 && !w.matches(pod, t) {
			continue
		}
		if slices.ContainsFunc(d.specs(), func(p kubeedit.Path) bool { return p.String() == t.spec.String() }) {
			changed = true
		} else {
			other = true
		}
	}
	return changed && !other
}

func (w *Workload) matches(pod *corev1.Pod, t Template) bool {
	for _, c := range t.Containers {
		i := slices.IndexFunc(pod.Spec.Containers, func(p corev1.Container) bool { return p.Name == c.Name })
		if c.Init {
			continue
		}
		if i < 0 || c.Image != "" && pod.Spec.Containers[i].Image != c.Image {
			return false
		}
		is := kubeedit.Map(w.Object.Object, c.path)
		for name, words := range map[string][]string{
			"command": pod.Spec.Containers[i].Command, "args": pod.Spec.Containers[i].Args,
		} {
			if want, ok := is[name]; ok && !kubeedit.Same(words, kubeedit.Encode(want)) {
				return false
			}
		}
	}
	return true
}

// owners determines whether owner references lead to a workload. It reads each owner once.
type owners struct {
	cluster   *Cluster
	namespace string
	seen      map[types.UID]bool
}

func (o *owners) lead(ctx context.Context, references []metav1.OwnerReference) bool {
	for _, r := range references {
		known, ok := o.seen[r.UID]
		if !ok {
			o.seen[r.UID] = false // also terminates on a cycle
			parent, _, err := o.cluster.owner(ctx, o.namespace, r)
			known = err == nil && parent != nil && o.lead(ctx, parent.GetOwnerReferences())
			o.seen[r.UID] = known
		}
		if known {
			return true
		}
	}
	return false
}

// pollRollout is the interval at which a rollout is read.
const pollRollout = 300 * time.Millisecond

// Wait waits until the rollout is done or, if the fault may crash new pods, until they crash. The error describes what
// blocks the rollout. If the timeout is 0, only ctx limits the wait.
func (c *Cluster) Wait(
	ctx context.Context, d *Data, most time.Duration, mayCrash bool, progress func(string),
) (*Rollout, error) {
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, most, fmt.Errorf("timed out after %s", most))
		defer cancel()
	}
	var last *Rollout
	said := ""
	for {
		r, err := c.Rollout(ctx, d)
		switch {
		case err == nil && (r.Done || r.Later):
			return r, nil
		case err == nil && r.Held && mayCrash:
			r.Text += "; old pods are kept until new ones are ready, but the new ones are crashing"
			return r, nil
		case err == nil:
			last = r
			if r.Text != said && progress != nil {
				said = r.Text
				progress(r.Text)
			}
		case ctx.Err() == nil && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return last, c.stuck(ctx, d, last, err)
		case <-time.After(pollRollout):
		}
	}
}

// stuck returns the error for a rollout that did not finish.
func (c *Cluster) stuck(ctx context.Context, d *Data, last *Rollout, err error) error {
	cause := context.Cause(ctx)
	if last == nil {
		return errors.Join(fmt.Errorf("the rollout of %s did not finish: %w", d.Ref(), cause), err)
	}
	problems := last.Problems
	if last.New == 0 || len(problems) == 0 {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		problems = append(problems, c.refused(look, d)...)
	}
	text := fmt.Sprintf("the rollout of %s did not finish (%s)", d.Ref(), last.Text)
	if len(problems) > 0 {
		text += ": " + strings.Join(problems, "; ")
	}
	return fmt.Errorf("%s: %w", text, cause)
}

// refused returns the last events of controllers whose pods the API server rejected, for example because of quota, Pod
// Security or webhooks.
func (c *Cluster) refused(ctx context.Context, d *Data) []string {
	events, err := c.Client.CoreV1().Events(d.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "type=Warning,reason=FailedCreate"})
	if err != nil {
		return nil
	}
	var said []string
	for _, e := range slices.Backward(events.Items) {
		if e.Reason != "FailedCreate" || !strings.HasPrefix(e.InvolvedObject.Name, d.Name) {
			continue
		}
		if text := fmt.Sprintf(
			"%s/%s: %s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Message,
		); !slices.Contains(said, text) &&
			len(said) < 3 {
			said = append(said, text)
		}
	}
	return said
}

package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Played says how a scenario is played on a Deployment of the trainer's, which takes the place of the one that it
// creates. Only scenarios have it whose fault lies in that Deployment alone, and can be seen and graded without knowing
// what it computes: then facts.workload is there.
type Played struct {
	// Namespace and Name are the parameters that take those of the Deployment.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Only are the choices that are left of parameters.
	Only map[string][]any `json:"only,omitempty"`
}

// WorkloadFacts are those of the Deployment that an exercise is played on.
type WorkloadFacts struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Labels    string `json:"labels"`    // by which its pods are found: app=trainer
	Replicas  int    `json:"replicas"`  // that it is to have
	Container int    `json:"container"` // which of its containers asks for GPUs, from 0
	GPUs      int    `json:"gpus"`      // that this one asks for
	Requests  bool   `json:"requests"`  // whether it names them in its requests, too
}

// FindWorkload reads the Deployment that a trainer names as KIND/NAME. It refuses one that could not be broken and
// mended as scenarios do it, and says why.
func FindWorkload(ctx context.Context, client kubernetes.Interface, namespace, name string) (*WorkloadFacts, error) {
	kind, name, _ := strings.Cut(name, "/")
	switch {
	case name == "":
		return nil, fmt.Errorf("--workload %s: write KIND/NAME, as deployment/trainer", kind)
	case slices.Contains([]string{"sts", "statefulset", "statefulsets"}, strings.ToLower(kind)):
		return nil,
			fmt.Errorf("--workload %s/%s: a StatefulSet waits for ever for a pod that does not start, also when its template is right again "+
				"(Kubernetes calls it forced rollback), so that mending it is not what is asked: name a Deployment",
				kind,
				name)
	case !slices.Contains([]string{"deploy", "deployment", "deployments", "deployment.apps", "deployments.apps"},
		strings.ToLower(kind)):
		return nil, fmt.Errorf(
			"--workload %s/%s: exercises are played on Deployments only: name one as deployment/%[2]s", kind, name,
		)
	}
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf(
			"there is no Deployment %s in namespace %s: name another with --workload, or its namespace with -n", name,
			namespace,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Deployment %s in namespace %s: %w", name, namespace, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("the selector of Deployment %s: %w", name, err)
	}
	w := &WorkloadFacts{Namespace: namespace, Name: name, Labels: selector.String(), Replicas: 1, Container: -1}
	if d.Spec.Replicas != nil {
		w.Replicas = int(*d.Spec.Replicas)
	}
	for i, c := range d.Spec.Template.Spec.Containers {
		if gpus := c.Resources.Limits.Name(GPUResource, "").Value(); gpus > 0 && w.Container < 0 {
			_, requests := c.Resources.Requests[GPUResource]
			w.Container, w.GPUs, w.Requests = i, int(gpus), requests
		}
	}
	return w, w.fits(d)
}

// fits refuses Deployments that ask for no GPU, do not work, or are not the trainer's to change.
func (w WorkloadFacts) fits(d *appsv1.Deployment) error {
	refuse := func(why, instead string) error {
		return fmt.Errorf("the Deployment %s in namespace %s %s: %s", w.Name, w.Namespace, why, instead)
	}
	switch {
	case d.DeletionTimestamp != nil:
		return refuse("is being deleted", "name another")
	case len(d.OwnerReferences) > 0:
		return refuse("belongs to "+d.OwnerReferences[0].Kind+" "+d.OwnerReferences[0].Name,
			"its owner would undo what is broken; name one that nothing manages")
	case w.Container < 0:
		return refuse("asks for no "+GPUResource, "name one that has it in the limits of a container")
	case d.Spec.Paused:
		return refuse("is paused", "resume it with: kubectl rollout resume")
	case w.Replicas == 0 || d.Status.ObservedGeneration < d.Generation ||
		d.Status.UpdatedReplicas != int32(w.Replicas) || d.Status.AvailableReplicas != int32(w.Replicas):
		return refuse(fmt.Sprintf("has %d of %s available", d.Status.AvailableReplicas,
			count.Of(w.Replicas, "replica")),
			"it must work before it is broken")
	}
	return nil
}

// on draws what is left to draw where the exercise is played on a Deployment of the trainer's.
func (p *Played) on(w *WorkloadFacts, seed int64, given map[string]string, drawn map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(p.Only)) {
		if slices.Contains(p.Only[name], drawn[name]) {
			continue
		}
		if value, is := given[name]; is {
			return fmt.Errorf("%s=%s cannot be played on a workload of yours: there are %v", name, value, p.Only[name])
		}
		drawn[name] = p.Only[name][choose(seed, name, len(p.Only[name]))]
	}
	drawn[p.Namespace], drawn[p.Name] = w.Namespace, w.Name
	return nil
}

// OnWorkload refuses a scenario that cannot be played on a Deployment of the trainer's, and names those of ours that
// can.
func (s *Scenario) OnWorkload() error {
	if s.Workload != nil {
		return nil
	}
	all, err := Builtin()
	if err != nil {
		return err
	}
	var names []string
	for _, s := range all {
		if s.Workload != nil {
			names = append(names, s.Metadata.Name)
		}
	}
	return fmt.Errorf("scenario %s cannot be played on a workload of yours: its fault is in more than that, or cannot be seen in a program that it does not know; "+
		"these can: %s", s.Metadata.Name, strings.Join(names, ", "))
}

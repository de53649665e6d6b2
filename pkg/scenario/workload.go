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

// Played configures a scenario to use an existing Deployment of the trainer instead of the one that the scenario
// creates. A scenario supports this only if its fault is confined to the Deployment, and can be observed and graded
// without knowing what the Deployment computes. If the trainer's Deployment is used, facts.workload is set.
type Played struct {
	// Namespace and Name are the names of the parameters that are set to the Deployment's namespace and name.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Only restricts some of the parameters to certain values. It maps each of these parameters to the values that it
	// may have.
	Only map[string][]any `json:"only,omitempty"`
}

// WorkloadFacts describe the Deployment that an exercise uses.
type WorkloadFacts struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Labels    string `json:"labels"`    // selector of its pods: app=trainer
	Replicas  int    `json:"replicas"`  // desired replicas
	Container int    `json:"container"` // index of the container that requests GPUs
	GPUs      int    `json:"gpus"`      // number of GPUs that this container requests
	Requests  bool   `json:"requests"`  // whether the GPUs are also in its requests
}

// FindWorkload reads the Deployment that a trainer specifies as KIND/NAME. It returns an error if scenarios
// cannot break and restore the Deployment.
func FindWorkload(ctx context.Context, client kubernetes.Interface, namespace, name string) (*WorkloadFacts, error) {
	kind, name, _ := strings.Cut(name, "/")
	switch {
	case name == "":
		return nil, fmt.Errorf("invalid value %q for --workload: must be KIND/NAME, such as deployment/trainer", kind)
	case slices.Contains([]string{"sts", "statefulset", "statefulsets"}, strings.ToLower(kind)):
		return nil,
			fmt.Errorf("invalid value \"%s/%s\" for --workload: a StatefulSet waits forever for a pod that does not "+
				"start, even after the template is corrected (see forced rollback in the Kubernetes documentation); "+
				"specify a Deployment",
				kind,
				name)
	case !slices.Contains([]string{"deploy", "deployment", "deployments", "deployment.apps", "deployments.apps"},
		strings.ToLower(kind)):
		return nil, fmt.Errorf(
			"invalid value \"%s/%s\" for --workload: must be a Deployment, such as deployment/%[2]s", kind, name,
		)
	}
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf(
			"deployment %q not found in namespace %q: specify another deployment with --workload, or the namespace "+
				"with -n", name,
			namespace,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("read deployment %q in namespace %q: %w", name, namespace, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("invalid selector of deployment %q: %w", name, err)
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

// fits returns an error if the Deployment requests no GPUs, is not available, or is managed by another object.
func (w WorkloadFacts) fits(d *appsv1.Deployment) error {
	refuse := func(why, instead string) error {
		return fmt.Errorf("deployment %q in namespace %q %s: %s", w.Name, w.Namespace, why, instead)
	}
	switch {
	case d.DeletionTimestamp != nil:
		return refuse("is being deleted", "specify another deployment")
	case len(d.OwnerReferences) > 0:
		return refuse("is owned by "+d.OwnerReferences[0].Kind+" "+d.OwnerReferences[0].Name,
			"the owner would revert the fault; specify a Deployment without an owner")
	case w.Container < 0:
		return refuse("does not request "+GPUResource,
			"specify a Deployment with a container that has this resource in its limits")
	case d.Spec.Paused:
		return refuse("is paused", "to resume it, run: kubectl rollout resume")
	case w.Replicas == 0 || d.Status.ObservedGeneration < d.Generation ||
		d.Status.UpdatedReplicas != int32(w.Replicas) || d.Status.AvailableReplicas != int32(w.Replicas):
		return refuse(fmt.Sprintf("has %d of %s available", d.Status.AvailableReplicas,
			count.Of(w.Replicas, "replica")),
			"all replicas must be available before the fault is injected")
	}
	return nil
}

// on restricts the drawn parameters to the values that are supported with the trainer's Deployment, and sets the
// parameters for the Deployment's namespace and name.
func (p *Played) on(w *WorkloadFacts, seed int64, given map[string]string, drawn map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(p.Only)) {
		if slices.Contains(p.Only[name], drawn[name]) {
			continue
		}
		if value, is := given[name]; is {
			return fmt.Errorf("parameter %s=%s is not supported with --workload; supported values: %v", name, value,
				p.Only[name])
		}
		drawn[name] = p.Only[name][choose(seed, name, len(p.Only[name]))]
	}
	drawn[p.Namespace], drawn[p.Name] = w.Namespace, w.Name
	return nil
}

// OnWorkload returns an error if the scenario cannot use an existing Deployment of the trainer. The error lists the
// built-in scenarios that can.
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
	return fmt.Errorf("scenario %q does not support --workload: its fault is not confined to the workload, or cannot be observed in an arbitrary program; "+
		"supported scenarios: %s", s.Metadata.Name, strings.Join(names, ", "))
}

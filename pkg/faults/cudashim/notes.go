package cudashim

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Replacement is when a controller replaces pods after their template was changed.
type Replacement string

// The replacements.
const (
	Rolling  Replacement = "rolling"  // at once, by its own strategy
	OnDelete Replacement = "onDelete" // when somebody deletes the old ones
	NextJob  Replacement = "nextJob"  // when the next job begins
	Paused   Replacement = "paused"   // when somebody resumes the rollout
	Recreate Replacement = "recreate" // the object is deleted and created again, with Injection.Recreate
	Unknown  Replacement = "unknown"  // its controller decides
)

// Replacement returns when pods are replaced after a change to the workload's templates.
func (w *Workload) Replacement() Replacement {
	group, kind := w.Object.GroupVersionKind().Group, w.Object.GetKind()
	text := func(names ...string) string { return kubeedit.Text(w.Object.Object, kubeedit.Fields(names...)) }
	paused, _ := kubeedit.Get(w.Object.Object, kubeedit.Fields("spec", "paused"))
	switch {
	case group == "apps" && kind == "Deployment" && paused == true:
		return Paused
	case group == "apps" && kind == "Deployment":
		return Rolling
	case group == "apps" && (kind == "StatefulSet" || kind == "DaemonSet"):
		if text("spec", "updateStrategy", "type") == "OnDelete" {
			return OnDelete
		}
		return Rolling
	case group == "apps" && kind == "ReplicaSet", group == "" && kind == "ReplicationController":
		return OnDelete
	case group == "batch" && kind == kindCronJob:
		return NextJob
	case group == "batch" && kind == kindJob:
		return Recreate
	case group == "leaderworkerset.x-k8s.io", group == "nvidia.com" && kind == "DynamoGraphDeployment":
		return Rolling
	case group == "ray.io" && kind == "RayCluster", group == "kubeflow.org":
		// Their controllers replace only pods that are gone
		return OnDelete
	}
	return Unknown
}

// Managers are sentences about those who keep the workload as it is elsewhere, and so will undo a change of ours.
func (w *Workload) Managers() []string {
	labels, annotations := w.Object.GetLabels(), w.Object.GetAnnotations()
	var notes []string
	warn := func(who, pause string) {
		notes = append(notes, fmt.Sprintf(
			"%s is managed by %s, which may undo the change at its next synchronization: %s", w.Ref(), who, pause,
		))
	}
	managed := func(manager string) bool {
		return slices.ContainsFunc(w.Object.GetManagedFields(),
			func(e metav1.ManagedFieldsEntry) bool { return e.Manager == manager })
	}
	argo := cmp.Or(annotations["argocd.argoproj.io/tracking-id"], labels["argocd.argoproj.io/instance"])
	switch {
	case argo != "" || managed("argocd-controller") || managed("argocd-application-controller"):
		warn("Argo CD"+of(" application ", argo), "turn automatic sync, or at least self-heal, off for that time")
	case labels["kustomize.toolkit.fluxcd.io/name"] != "" || managed("kustomize-controller"):
		name := labels["kustomize.toolkit.fluxcd.io/name"]
		warn("Flux"+of(" kustomization ", name),
			fmt.Sprintf("flux suspend kustomization %s, and resume it afterwards", cmp.Or(name, "NAME")))
	case labels["helm.toolkit.fluxcd.io/name"] != "" || managed("helm-controller"):
		name := labels["helm.toolkit.fluxcd.io/name"]
		warn("Flux"+of(" helmrelease ", name),
			fmt.Sprintf("flux suspend helmrelease %s, and resume it afterwards", cmp.Or(name, "NAME")))
	case managed("fleetagent") || annotations["objectset.rio.cattle.io/id"] != "":
		warn("Rancher Fleet", "pause its bundle for that time")
	}
	return notes
}

func of(word, name string) string {
	if name == "" {
		return ""
	}
	return word + name
}

// Notes returns what a user should know before a change: who may undo it, and when it takes effect. What may not be
// read is left out.
func (c *Cluster) Notes(ctx context.Context, w *Workload) []string {
	return c.notes(ctx, w, w.Replacement())
}

// notes returns those for a replacement that was found out by trying.
func (c *Cluster) notes(ctx context.Context, w *Workload, replaced Replacement) []string {
	var notes []string
	if w.Asked != "" {
		notes = append(notes,
			fmt.Sprintf("%s belongs to %s, which is what is changed, with all its pods", w.Asked, w.Ref()))
	}
	if w.Above != "" {
		notes = append(notes,
			fmt.Sprintf("%s belongs to %s, which has no pod template to change, and whose controller may undo the change",
				w.Ref(),
				w.Above))
	}
	switch replaced {
	case OnDelete:
		notes = append(notes,
			fmt.Sprintf("the controller of %s does not replace running pods: they get the shim, and lose it again, only when "+
				"you delete them", w.Ref()))
	case Paused:
		notes = append(notes,
			fmt.Sprintf("the rollout of %s is paused: pods get the shim when you resume it: kubectl rollout resume %s -n %s",
				w.Ref(),
				w.Ref(), w.Object.GetNamespace()))
	case NextJob:
		notes = append(notes, fmt.Sprintf("%s: the change applies to the next job, not to jobs that run", w.Ref()))
	case Recreate:
		notes = append(notes, fmt.Sprintf(
			"%s is deleted and created again, and once more for the undo: its work begins anew each time", w.Ref(),
		))
	case Unknown:
		notes = append(notes, fmt.Sprintf(
			"whether running pods are replaced is up to the controller of %s: if they are not, delete them", w.Ref(),
		))
	}
	notes = append(notes, w.Managers()...)
	return append(notes, c.autoscalers(ctx, w)...)
}

// autoscalers returns the HorizontalPodAutoscalers that scale the workload.
func (c *Cluster) autoscalers(ctx context.Context, w *Workload) []string {
	list, err := c.Client.AutoscalingV2().HorizontalPodAutoscalers(w.Object.GetNamespace()).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var notes []string
	for _, hpa := range list.Items {
		if target := hpa.Spec.ScaleTargetRef; target.Kind == w.Object.GetKind() && target.Name == w.Object.GetName() {
			notes = append(notes,
				fmt.Sprintf("horizontalpodautoscaler/%s scales %s from %d to %s, and may answer the fault with more pods, "+
					"which have it too",
					hpa.Name, w.Ref(), atLeast(hpa.Spec.MinReplicas), count.Of(hpa.Spec.MaxReplicas, "pod")))
		}
	}
	return notes
}

func atLeast(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// envFromNotes tell of variables that come from objects which this tool does not read: Secrets.
func envFromNotes(w *Workload, chosen []Chosen, variable string) []string {
	var notes []string
	for _, c := range chosen {
		for _, container := range c.Containers {
			if _, own := kubeedit.Get(
				w.Object.Object, container.path.Then(kubeedit.Field("env"), kubeedit.Element("name", variable)),
			); own {
				continue
			}
			for _, e := range kubeedit.List(w.Object.Object, container.path.Then(kubeedit.Field("envFrom"))) {
				for _, kind := range []string{"configMap", "secret"} {
					if name := kubeedit.Text(e, kubeedit.Fields(kind+"Ref", "name")); name != "" {
						notes = append(notes,
							fmt.Sprintf("container %s takes variables from %s %s: if %s is among them, ours hides it; to keep it, set it in "+
								"the template",
								container.Name, kind, name, variable))
					}
				}
			}
		}
	}
	return notes
}

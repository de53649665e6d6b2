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

// Replacement determines when a controller replaces pods after their template has changed.
type Replacement string

// The replacements.
const (
	Rolling  Replacement = "rolling"  // immediately, following the workload's strategy
	OnDelete Replacement = "onDelete" // when the user deletes the old ones
	NextJob  Replacement = "nextJob"  // when the next job starts
	Paused   Replacement = "paused"   // when the user resumes the rollout
	Recreate Replacement = "recreate" // the object is deleted and recreated, with Injection.Recreate
	Unknown  Replacement = "unknown"  // the controller decides
)

// Replacement determines when the controller replaces pods after a change to the workload's templates.
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
		// Their controllers replace only pods that were deleted.
		return OnDelete
	}
	return Unknown
}

// Managers returns a note for each GitOps tool that manages the workload and may undo a change.
func (w *Workload) Managers() []string {
	labels, annotations := w.Object.GetLabels(), w.Object.GetAnnotations()
	var notes []string
	warn := func(who, pause string) {
		notes = append(notes, fmt.Sprintf(
			"%s is managed by %s, which may undo the change at its next sync: %s", w.Ref(), who, pause,
		))
	}
	managed := func(manager string) bool {
		return slices.ContainsFunc(w.Object.GetManagedFields(),
			func(e metav1.ManagedFieldsEntry) bool { return e.Manager == manager })
	}
	argo := cmp.Or(annotations["argocd.argoproj.io/tracking-id"], labels["argocd.argoproj.io/instance"])
	switch {
	case argo != "" || managed("argocd-controller") || managed("argocd-application-controller"):
		warn("Argo CD"+of(" application ", argo), "turn off automatic sync, or at least self-heal, in the meantime")
	case labels["kustomize.toolkit.fluxcd.io/name"] != "" || managed("kustomize-controller"):
		name := labels["kustomize.toolkit.fluxcd.io/name"]
		warn("Flux"+of(" kustomization ", name),
			fmt.Sprintf("flux suspend kustomization %s, and resume it afterwards", cmp.Or(name, "NAME")))
	case labels["helm.toolkit.fluxcd.io/name"] != "" || managed("helm-controller"):
		name := labels["helm.toolkit.fluxcd.io/name"]
		warn("Flux"+of(" helmrelease ", name),
			fmt.Sprintf("flux suspend helmrelease %s, and resume it afterwards", cmp.Or(name, "NAME")))
	case managed("fleetagent") || annotations["objectset.rio.cattle.io/id"] != "":
		warn("Rancher Fleet", "pause the bundle in the meantime")
	}
	return notes
}

func of(word, name string) string {
	if name == "" {
		return ""
	}
	return word + name
}

// Notes returns notes that a user should see before a change: what may undo the change, and when it takes effect.
// Objects that the user may not read are skipped.
func (c *Cluster) Notes(ctx context.Context, w *Workload) []string {
	return c.notes(ctx, w, w.Replacement())
}

// notes returns the notes for a replacement determined by a dry run.
func (c *Cluster) notes(ctx context.Context, w *Workload, replaced Replacement) []string {
	var notes []string
	if w.Asked != "" {
		notes = append(notes,
			fmt.Sprintf("%s belongs to %s, which is changed together with all its pods", w.Asked, w.Ref()))
	}
	if w.Above != "" {
		notes = append(notes,
			fmt.Sprintf("%s belongs to %s, which has no pod template, and whose controller may undo the change",
				w.Ref(),
				w.Above))
	}
	switch replaced {
	case OnDelete:
		notes = append(notes,
			fmt.Sprintf("the controller of %s does not replace running pods: the shim is added to them, and removed again, only if "+
				"you delete them", w.Ref()))
	case Paused:
		notes = append(notes,
			fmt.Sprintf("the rollout of %s is paused: pods get the shim when you resume it with: kubectl rollout resume %s -n %s",
				w.Ref(),
				w.Ref(), w.Object.GetNamespace()))
	case NextJob:
		notes = append(notes, fmt.Sprintf("%s: the change applies to the next job, not to running jobs", w.Ref()))
	case Recreate:
		notes = append(notes, fmt.Sprintf(
			"%s is deleted and recreated, and again when the change is undone: its work starts over each time", w.Ref(),
		))
	case Unknown:
		notes = append(notes, fmt.Sprintf(
			"the controller of %s decides whether to replace running pods: if it does not, delete them",
			w.Ref(),
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
				fmt.Sprintf("horizontalpodautoscaler/%s scales %s from %d to %s, and may react to the fault by adding pods, "+
					"which also have the fault",
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

// envFromNotes returns notes about variables from objects that this tool does not read, such as Secrets.
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
							fmt.Sprintf("container %q reads variables from %s %q: if %s is one of them, the injected value overrides it; to keep the value, set "+
								"it in the template",
								container.Name, kind, name, variable))
					}
				}
			}
		}
	}
	return notes
}

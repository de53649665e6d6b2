package chaosmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Installed returns an error if the cluster does not serve NetworkChaos objects. It queries the API server, because
// kubectl's cache may be outdated.
func Installed(client kubernetes.Interface) error {
	served, err := client.Discovery().ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	isOurs := func(r metav1.APIResource) bool { return r.Name == gvr.Resource }
	if err == nil && slices.ContainsFunc(served.APIResources, isOurs) {
		return nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		return fmt.Errorf("the cluster does not serve NetworkChaos objects (%s): install Chaos Mesh, or omit --via",
			gvr.GroupVersion())
	}
	return err
}

// CheckNamespaces returns an error if Chaos Mesh's settings exclude one of the namespaces. Settings and namespaces that
// the user may not read are not checked. If they exclude a namespace, Chaos Mesh selects no pods, and the fault fails.
func CheckNamespaces(ctx context.Context, client kubernetes.Interface, namespaces []string) error {
	managers, err := client.AppsV1().Deployments("").List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=chaos-controller-manager"})
	if err != nil || len(managers.Items) == 0 || len(managers.Items[0].Spec.Template.Spec.Containers) == 0 {
		return nil
	}
	settings := map[string]string{}
	for _, e := range managers.Items[0].Spec.Template.Spec.Containers[0].Env {
		settings[e.Name] = e.Value
	}
	for _, name := range namespaces {
		if only := settings["TARGET_NAMESPACE"]; settings["CLUSTER_SCOPED"] == "false" && only != name {
			return fmt.Errorf("namespace %q is not %q, the only namespace in which this Chaos Mesh injects faults (Helm value clusterScoped)",
				name, only)
		}
		if settings["ENABLE_FILTER_NAMESPACE"] != "true" {
			continue
		}
		namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err == nil && namespace.Annotations["chaos-mesh.org/inject"] != "enabled" {
			return fmt.Errorf("namespace %q is not annotated for Chaos Mesh, which filters namespaces (Helm value "+
				"controllerManager.enableFilterNamespace): to annotate it, run: kubectl annotate namespace %[1]s chaos-mesh.org/inject=enabled", name)
		}
	}
	return nil
}

// Verified returns a change that creates objects and waits until Chaos Mesh has injected the fault into all of their
// pods.
func Verified(
	creation fault.Change, client dynamic.Interface, objects []*unstructured.Unstructured, timeout time.Duration,
) fault.Change {
	create := creation.Apply
	creation.Apply = func(ctx context.Context, recorder fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := create(ctx, recorder)
		if err == nil {
			recorder.Progress("waiting for Chaos Mesh to inject")
		}
		for i := 0; i < len(objects) && err == nil; i++ {
			var proof ledger.Evidence
			if proof, err = injected(ctx, client, objects[i], timeout); err == nil {
				evidence = append(evidence, proof)
			}
		}
		return evidence, err
	}
	return creation
}

// injected waits until Chaos Mesh has injected the fault into all pods of an object.
func injected(
	ctx context.Context, client dynamic.Interface, o *unstructured.Unstructured, timeout time.Duration,
) (ledger.Evidence, error) {
	proof := ledger.Evidence{Source: fmt.Sprintf("NetworkChaos %s/%s", o.GetNamespace(), o.GetName())}
	missing := ""
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, timeout, true,
		func(ctx context.Context) (bool, error) {
			live, err := client.Resource(gvr).Namespace(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
			if err == nil {
				proof.Text, missing = judge(live, o)
			}
			return missing == "", err
		})
	switch {
	case err == nil:
		proof.Time = time.Now().UTC()
		return proof, nil
	case missing != "" && wait.Interrupted(err) && !errors.Is(ctx.Err(), context.Canceled):
		return proof, fmt.Errorf("timed out waiting for %s: %s", proof.Source, missing)
	}
	return proof, fmt.Errorf("get %s: %w", proof.Source, err)
}

// object is the part of a NetworkChaos that selects pods and shows their state. It is untrusted.
type object struct {
	Spec struct {
		selection
		Target selection
	}
	Status struct {
		Conditions []struct{ Type, Status string }
		Experiment struct {
			DesiredPhase     string
			ContainerRecords []struct {
				ID, SelectorKey, Phase string
				Events                 []struct{ Type, Message string }
			}
		}
	}
}

type selection struct {
	Selector struct{ Pods map[string][]string }
}

// read parses an object. Fields that cannot be parsed stay empty, and are not verified.
func read(from *unstructured.Unstructured) (o object) {
	text, _ := from.MarshalJSON()
	_ = json.Unmarshal(text, &o)
	return o
}

// judge returns the evidence that the fault was injected into all pods that an object should select. If this evidence
// is missing, it returns the reason.
func judge(live, wanted *unstructured.Unstructured) (proof, missing string) {
	now := read(live)
	injected := false
	for _, c := range now.Status.Conditions {
		injected = injected || c.Type == "AllInjected" && c.Status == "True"
	}
	phases, failures := map[string]string{}, ""
	for _, r := range now.Status.Experiment.ContainerRecords {
		phases[r.SelectorKey+r.ID] = r.Phase
		if n := len(r.Events); n > 0 && r.Events[n-1].Type == "Failed" && len(failures) < 500 {
			failures += fmt.Sprintf("; error for pod %s: %.300s", r.ID, r.Events[n-1].Message)
		}
	}
	var all, left []string
	spec := read(wanted).Spec
	for key, s := range map[string]selection{".": spec.selection, ".Target": spec.Target} {
		for namespace, names := range s.Selector.Pods {
			for _, name := range names {
				pod := namespace + "/" + name
				all = append(all, pod)
				if phases[key+pod] != "Injected" {
					left = append(left, pod)
				}
			}
		}
	}
	slices.Sort(all)
	slices.Sort(left)
	switch phase := now.Status.Experiment.DesiredPhase; {
	case len(now.Status.Conditions) == 0 && len(phases) == 0:
		return "", "Chaos Mesh has not set a status: check that the Deployment chaos-controller-manager is running"
	case len(phases) == 0:
		return "", "Chaos Mesh has selected no pods: if it filters namespaces, annotate them with " +
			"chaos-mesh.org/inject=enabled"
	case phase != "Run":
		return "", fmt.Sprintf("the desired phase is %q, not Run", phase)
	case len(left) > 0 || !injected:
		missing = "Chaos Mesh has not injected the fault into all pods"
		if len(left) > 0 {
			missing += "; missing: " + strings.Join(left, ", ")
		}
		return "", missing + failures
	}
	return "AllInjected=True; Injected: " + strings.Join(all, ", "), ""
}

// Permissions returns the permissions for the objects, in addition to the permissions that every fault requires.
func Permissions() []fault.Permission {
	all := []fault.Permission{
		{Verb: "list", Group: "apps", Resource: "deployments", Optional: true},
		{Verb: "get", Resource: "namespaces", Optional: true},
	}
	for _, verb := range []string{"create", "get", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Group: gvr.Group, Resource: gvr.Resource})
	}
	return all
}

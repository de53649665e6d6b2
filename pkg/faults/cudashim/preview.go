package cudashim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Preview is the result of an injection's dry run.
type Preview struct {
	// Changes describe the edits, one per line: `spec.template.spec.containers[name=main].env[name=LD_PRELOAD].value:
	// "x" -> "y"`.
	Changes []string
	// Notes are notes that the user should see first, such as notes about GitOps tools that undo the change, about pods
	// that are not replaced, and about envFrom.
	Notes []string
	// Replaced determines when pods with the change are started.
	Replaced Replacement
	// Preload is the path of the shim in LD_PRELOAD or LD_AUDIT, without other libraries.
	Preload string
}

// previewRun is a placeholder for the run ID, which does not exist yet.
const previewRun = "cuda-preview"

// Preview sends the injection to the API server as a dry run. It returns the errors that Change would return.
func (in *Injection) Preview(ctx context.Context) (*Preview, error) {
	if err := in.validate(); err != nil {
		return nil, err
	}
	if err := in.checkNamespace(ctx); err != nil {
		return nil, err
	}
	p, err := in.plan(ctx, previewRun)
	if err != nil {
		return nil, err
	}
	if err := in.configMap(previewRun, nil).fits(); err != nil {
		return nil, err
	}
	if err := in.tryConfigMap(ctx, previewRun); err != nil {
		return nil, err
	}
	view := &Preview{
		Notes: append(p.notes, in.Cluster.notes(ctx, in.Workload, p.data.Replaced)...), Replaced: p.data.Replaced,
		Preload: p.data.Preload,
	}
	for _, e := range p.data.Edits {
		view.Changes = append(view.Changes, strings.ReplaceAll(describe(e), previewRun, "RUN"))
	}
	return view, nil
}

// validate returns an error for an incomplete Injection.
func (in *Injection) validate() error {
	switch {
	case len(in.Libraries) == 0:
		return errors.New("no library to inject")
	case in.State == nil:
		return errors.New("no state to inject")
	}
	return nil
}

// checkNamespace returns an error if a namespace is being deleted. Users who may not read namespaces get the error
// later.
func (in *Injection) checkNamespace(ctx context.Context) error {
	name := in.Workload.Object.GetNamespace()
	namespace, err := in.Cluster.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err == nil && (namespace.DeletionTimestamp != nil || namespace.Status.Phase == corev1.NamespaceTerminating) {
		return fmt.Errorf("namespace %q is being deleted: choose another workload", name)
	}
	return nil
}

// describe describes an edit to the user.
func describe(e kubeedit.Edit) string {
	switch {
	case e.Element:
		return fmt.Sprintf("%s: added %s", e.Path, e.Ours)
	case len(e.Was) > 0:
		return fmt.Sprintf("%s: %s -> %s", e.Path, e.Was, e.Ours)
	default:
		return fmt.Sprintf("%s: new: %s", e.Path, e.Ours)
	}
}

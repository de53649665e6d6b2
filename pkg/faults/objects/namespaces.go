package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// deleteNamespaces starts deleting the namespaces of the run's other steps. The deletions run at the same time, because
// each one takes seconds. The steps themselves wait for the deletion and report errors.
func (u undoing) deleteNamespaces(ctx context.Context) {
	if u.run.Phase == ledger.Planned || u.run.Phase == ledger.Applying { // only this step is being undone, not the run
		return
	}
	for _, step := range u.run.Steps {
		if step.ID == u.step.ID || step.Undo.Kind != UndoKind || !step.InPlace() {
			continue
		}
		d, err := ReadData(step)
		if err != nil || d == nil || d.check(u.LedgerNamespace) != nil {
			continue
		}
		for _, o := range d.Created {
			if !o.isNamespace() || u.holdsMore(o.Name) {
				continue
			}
			live, err := u.live(ctx, o)
			if err != nil || live == nil || live.GetDeletionTimestamp() != nil ||
				live.GetLabels()[LabelInstance] != o.mark(d.seal(u.run.ID, step.ID)) {
				continue
			}
			u.deleteNamespace(ctx, live)
		}
	}
}

// holdsMore reports whether a namespace contains a change of another kind, whose undo needs the namespace.
func (u undoing) holdsMore(namespace string) bool {
	for _, step := range u.run.Steps {
		if step.Target.Namespace == namespace && step.Undo.Kind != UndoKind && !step.Undo.IsPermanent() &&
			step.InPlace() {
			return true
		}
	}
	return false
}

func (u undoing) deleteNamespace(ctx context.Context, live *unstructured.Unstructured) {
	uid := live.GetUID()
	namespaces := Object{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: live.GetName()}
	if err := reach(u.Dynamic, namespaces).Delete(
		ctx, live.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	); err == nil {
		u.hurry(ctx, live.GetName())
	}
}

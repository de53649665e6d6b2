package cudashim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// isOurs reports whether an entry is of our changes: nobody else uses the name of FieldManager.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

// lost returns what others do not own any more. Their statuses are theirs: pod templates are in none.
func lost(before, after []metav1.ManagedFieldsEntry) []kubeedit.Owned {
	sub := func(entry metav1.ManagedFieldsEntry) bool { return entry.Subresource != "" }
	return kubeedit.Lost(slices.DeleteFunc(slices.Clone(before), sub), slices.DeleteFunc(slices.Clone(after), sub),
		isOurs)
}

// giveBack returns managed fields without us.
func giveBack(
	now []metav1.ManagedFieldsEntry, owned []kubeedit.Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	return kubeedit.GiveBack(now, isOurs, nil, owned)
}

package cudashim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fieldowner"
)

// isOurs reports whether an entry is of our changes: nobody else uses the name of FieldManager.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

// lost returns what others do not own any more. Their statuses are theirs: pod templates are in none.
func lost(before, after []metav1.ManagedFieldsEntry) []fieldowner.Owned {
	sub := func(entry metav1.ManagedFieldsEntry) bool { return entry.Subresource != "" }
	return fieldowner.Lost(slices.DeleteFunc(slices.Clone(before), sub), slices.DeleteFunc(slices.Clone(after), sub),
		isOurs)
}

// giveBack returns managed fields without us.
func giveBack(
	now []metav1.ManagedFieldsEntry, owned []fieldowner.Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	return fieldowner.GiveBack(now, isOurs, nil, owned)
}

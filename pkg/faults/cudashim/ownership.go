package cudashim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// isOurs reports whether an entry belongs to our changes: only this tool uses FieldManager.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

// lost returns the fields that other managers no longer own. Entries of subresources do not count: pod templates are
// not in a status.
func lost(before, after []metav1.ManagedFieldsEntry) []kubeedit.Owned {
	sub := func(entry metav1.ManagedFieldsEntry) bool { return entry.Subresource != "" }
	return kubeedit.Lost(slices.DeleteFunc(slices.Clone(before), sub), slices.DeleteFunc(slices.Clone(after), sub),
		isOurs)
}

// giveBack returns the managed fields in which this tool owns nothing.
func giveBack(
	now []metav1.ManagedFieldsEntry, owned []kubeedit.Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	return kubeedit.GiveBack(now, isOurs, nil, owned)
}

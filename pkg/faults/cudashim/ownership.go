package cudashim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// isOurs reports whether an entry belongs to changes made by this tool, which is the only client that uses
// FieldManager.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

// lost returns the fields that other managers no longer own. Entries for subresources are ignored, because pod
// templates are not in a status.
func lost(before, after []metav1.ManagedFieldsEntry) []kubeedit.Owned {
	sub := func(entry metav1.ManagedFieldsEntry) bool { return entry.Subresource != "" }
	return kubeedit.Lost(slices.DeleteFunc(slices.Clone(before), sub), slices.DeleteFunc(slices.Clone(after), sub),
		isOurs)
}

// giveBack returns the managed fields without those owned by this tool.
func giveBack(
	now []metav1.ManagedFieldsEntry, owned []kubeedit.Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	return kubeedit.GiveBack(now, isOurs, nil, owned)
}

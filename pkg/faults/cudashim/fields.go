package cudashim

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// writeFields replaces the managed fields of an object if it has not changed since it was read. The API server stores
// them unchanged if nothing else changes (fieldmanager.Update: "this is necessary to allow directly updating managed
// fields").
func (c *Cluster) writeFields(
	ctx context.Context, w *Workload, object *unstructured.Unstructured, fields []metav1.ManagedFieldsEntry,
) error {
	ops := []operation{{Op: "test", Path: "/metadata/uid", Value: kubeedit.Encode(object.GetUID())}}
	if version := object.GetResourceVersion(); version != "" {
		ops = append(ops, operation{Op: "test", Path: "/metadata/resourceVersion", Value: kubeedit.Encode(version)})
	}
	body, err := json.Marshal(
		append(ops, operation{Op: "add", Path: "/metadata/managedFields", Value: kubeedit.Encode(fields)}),
	)
	if err != nil {
		return fmt.Errorf("encode the managed fields: %w", err)
	}
	_, err = c.resource(w).Patch(ctx, object.GetName(), types.JSONPatchType, body,
		metav1.PatchOptions{FieldManager: FieldManager})
	return explain(err, "restore the owners of the fields of "+w.Ref(), object.GetNamespace())
}

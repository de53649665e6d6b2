package seal

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// ClusterRoles keeps each seal as a ClusterRole without rules, whose name contains the seal. Users who can write only
// ConfigMaps cannot create one. The name and label do not reveal the run that created the ClusterRole or its purpose.
type ClusterRoles struct {
	Dynamic      dynamic.Interface
	FieldManager string
	// Label is the key of the label on each ClusterRole. Its value is the seal.
	Label string
}

var _ Keeper = ClusterRoles{}

// ClusterRole returns the name of the ClusterRole that keeps a seal.
func ClusterRole(s Seal) string { return "lab-" + string(s) }

func (k ClusterRoles) client() dynamic.NamespaceableResourceInterface {
	return k.Dynamic.Resource(
		schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	)
}

// Where implements Keeper.
func (ClusterRoles) Where(s Seal) string { return "ClusterRole " + ClusterRole(s) }

// Keep implements Keeper.
func (k ClusterRoles) Keep(ctx context.Context, s Seal) error {
	role := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": []any{},
		"metadata": map[string]any{"name": ClusterRole(s), "labels": map[string]any{k.Label: string(s)}},
	}}
	_, err := k.client().Create(ctx, role, metav1.CreateOptions{FieldManager: k.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s, which vouches for the record: %w", k.Where(s), err)
	}
	return nil
}

// Has implements Keeper.
func (k ClusterRoles) Has(ctx context.Context, s Seal) (bool, error) {
	role, err := k.client().Get(ctx, ClusterRole(s), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get %s, which vouches for the record: %w", k.Where(s), err)
	}
	return role.GetLabels()[k.Label] == string(s), nil
}

// Drop implements Keeper.
func (k ClusterRoles) Drop(ctx context.Context, s Seal) error {
	err := k.client().Delete(ctx, ClusterRole(s), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", k.Where(s), err)
	}
	return nil
}

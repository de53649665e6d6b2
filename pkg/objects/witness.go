package objects

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// A witness is a ClusterRole that allows nothing. Its name holds the hash of a step's undo: who may write the ledger, but no ClusterRoles,
// cannot make one for a record of their own.

// witnessOf is the witness for a word.
func witnessOf(word string) Object {
	return Object{Group: groupRBAC, Version: "v1", Resource: "clusterroles", Kind: "ClusterRole", Name: "lab-" + word}
}

func createWitness(ctx context.Context, client dynamic.Interface, word string) error {
	o := witnessOf(word)
	role := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": o.APIVersion(), "kind": o.Kind, "rules": []any{},
		"metadata": map[string]any{"name": o.Name, "labels": map[string]any{LabelInstance: word}},
	}}
	_, err := client.Resource(o.GVR()).Create(ctx, role, metav1.CreateOptions{FieldManager: ManagerCreate})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s, by which the undo knows its record: %w", o, err)
	}
	return nil
}

// isWitnessed is whether there is a witness for a word.
func isWitnessed(ctx context.Context, client dynamic.Interface, word string) (bool, error) {
	o := witnessOf(word)
	live, err := client.Resource(o.GVR()).Get(ctx, o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get %s, which tells a record from a forged one: %w", o, err)
	}
	return live.GetLabels()[LabelInstance] == word, nil
}

func deleteWitness(ctx context.Context, client dynamic.Interface, word string) error {
	o := witnessOf(word)
	err := client.Resource(o.GVR()).Delete(ctx, o.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	return nil
}

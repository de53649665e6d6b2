package objects

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
)

// deletionPause is the interval at which objects are read while they are being deleted.
const deletionPause = 200 * time.Millisecond

// waitForDeletion waits until the objects with these UIDs no longer exist.
func (u undoing) waitForDeletion(ctx context.Context, objects []Object) error {
	most := cmp.Or(u.Wait, DefaultWait)
	var last *unstructured.Unstructured
	left := objects
	told := ""
	err := wait.PollUntilContextTimeout(ctx, deletionPause, most, true, func(ctx context.Context) (bool, error) {
		for len(left) > 0 {
			live, err := u.live(ctx, left[0])
			if err != nil {
				return false, nil // try again
			}
			if live != nil && string(live.GetUID()) == left[0].UID {
				last = live
				if text := fmt.Sprintf("waiting for the deletion of %s", left[0]); text != told {
					told = text
					u.report(text)
				}
				return false, nil
			}
			left = left[1:]
		}
		return true, nil
	})
	switch {
	case err == nil || len(left) == 0:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s is still being deleted: %w%s", left[0], context.Cause(ctx), holders(last))
	}
	return fmt.Errorf("%s is still being deleted after %s%s", left[0], most, holders(last))
}

// holders describes what blocks the deletion of an object: a namespace's conditions, and finalizers.
func holders(live *unstructured.Unstructured) string {
	if live == nil {
		return ""
	}
	var reasons []string
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if message, _ := condition["message"].(string); condition["status"] == "True" && message != "" &&
			live.GetKind() == "Namespace" {
			reasons = append(reasons, message)
		}
	}
	if finalizers := live.GetFinalizers(); len(finalizers) > 0 {
		reasons = append(reasons, "finalizers "+strings.Join(finalizers, ", "))
	}
	if len(reasons) == 0 {
		return ""
	}
	return ": " + strings.Join(reasons, "; ")
}

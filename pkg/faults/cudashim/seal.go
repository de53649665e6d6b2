package cudashim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// annotationSeals is the annotation on a run's ConfigMap that contains the seals of the undo data that the run has
// recorded, separated by spaces. A user who can write only to the ledger cannot write this annotation.
const annotationSeals = "gpufault.dev/seals"

// mostSeals limits the number of seals. A run records its undo data again if another client writes first, and only the
// most recent seals matter.
const mostSeals = 16

// configMapKeeper keeps the seals of a run on its ConfigMap, in the workload's namespace.
type configMapKeeper struct {
	client         kubernetes.Interface
	namespace, run string
}

var _ seal.Keeper = configMapKeeper{}

// seal returns the seal of the undo data.
func (d *Data) seal(run string) seal.Seal { return seal.Of(run, d.Ref(), kubeedit.Encode(d)) }

// Where implements seal.Keeper.
func (k configMapKeeper) Where(seal.Seal) string {
	return fmt.Sprintf("configmap %s in namespace %s", Name(k.run), k.namespace)
}

// Keep implements seal.Keeper. A seal is kept before the undo is recorded, and earlier seals are not removed, because
// the client may die in between.
func (k configMapKeeper) Keep(ctx context.Context, s seal.Seal) error {
	return changeConfigMap(ctx, k.client, k.namespace, k.run, func(cm *corev1.ConfigMap) error {
		setSeal(cm, s)
		return nil
	})
}

func setSeal(cm *corev1.ConfigMap, s seal.Seal) {
	seals := strings.Fields(cm.Annotations[annotationSeals])
	if slices.Contains(seals, string(s)) {
		return
	}
	seals = append(seals, string(s))
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, annotationSeals,
		strings.Join(seals[max(0, len(seals)-mostSeals):], " "))
}

// Has implements seal.Keeper.
func (k configMapKeeper) Has(ctx context.Context, s seal.Seal) (bool, error) {
	cm, err := k.client.CoreV1().ConfigMaps(k.namespace).Get(ctx, Name(k.run), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get %s: %w", k.Where(s), err)
	}
	return isOfRun(cm, k.run) && slices.Contains(strings.Fields(cm.Annotations[annotationSeals]), string(s)), nil
}

// Drop implements seal.Keeper. The seals are deleted together with the ConfigMap at the end of the undo.
func (k configMapKeeper) Drop(context.Context, seal.Seal) error { return nil }

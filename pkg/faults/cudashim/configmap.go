package cudashim

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// maxConfigMap is the API server's limit for the data of a ConfigMap in bytes (MaxSecretSize).
const maxConfigMap = 1 << 20

// stateRoom is the number of bytes reserved for the state file while its size is not known yet.
const stateRoom = 4 << 10

// Name returns the name of a run's ConfigMap, which is in the workload's namespace.
func Name(run string) string { return "gpu-fault-" + run }

// payload is the ConfigMap of a run.
type payload struct{ *corev1.ConfigMap }

// configMap returns the ConfigMap of a run. The workload owns it, so that both are deleted together.
func (in *Injection) configMap(run string, state []byte) payload {
	w := in.Workload.Object
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(run), Namespace: w.GetNamespace(),
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: run},
			OwnerReferences: []metav1.OwnerReference{
				ownerReference(w.GetAPIVersion(), w.GetKind(), w.GetName(), w.GetUID()),
			},
		},
		BinaryData: map[string][]byte{StateKey: state},
	}
	for arch, library := range in.Libraries {
		cm.BinaryData[libraryKey(arch)] = library
	}
	return payload{cm}
}

// fits returns an error if the data is too large for a ConfigMap.
func (p payload) fits() error {
	size := 0
	for name, data := range p.BinaryData {
		size += len(name) + len(data)
	}
	if len(p.BinaryData[StateKey]) == 0 {
		size += stateRoom
	}
	if size > maxConfigMap {
		return fmt.Errorf("the libraries require %d KiB, but a ConfigMap can contain at most %d KiB", size>>10, maxConfigMap>>10)
	}
	return nil
}

// tryConfigMap asks the API server whether it would accept the ConfigMap, given quota, permissions and admission.
func (in *Injection) tryConfigMap(ctx context.Context, run string) error {
	cm := in.configMap(run, nil)
	_, err := in.Cluster.Client.CoreV1().ConfigMaps(cm.Namespace).Create(ctx, cm.ConfigMap,
		metav1.CreateOptions{FieldManager: FieldManager,
			DryRun: []string{metav1.DryRunAll}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return explain(err, "create configmap "+cm.Name, cm.Namespace)
	}
	return nil
}

// createConfigMap creates a run's ConfigMap. If it exists, an earlier attempt of the same run created it.
func (in *Injection) createConfigMap(ctx context.Context, run ledger.Run, d Data) error {
	state, err := in.State(run)
	if err != nil {
		return fmt.Errorf("create the state file: %w", err)
	}
	cm := in.configMap(run.ID, state)
	if err := cm.fits(); err != nil {
		return err
	}
	if d.Recreated != nil { // the old owner will be deleted, and the new one does not exist yet
		cm.OwnerReferences = nil
	}
	setSeal(cm.ConfigMap, d.seal(run.ID))
	client := in.Cluster.Client.CoreV1().ConfigMaps(cm.Namespace)
	_, err = client.Create(ctx, cm.ConfigMap, metav1.CreateOptions{FieldManager: FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return changeConfigMap(ctx, in.Cluster.Client, cm.Namespace, run.ID, func(old *corev1.ConfigMap) error {
			if _, ends := old.Annotations[reverting]; ends {
				return ErrReverting
			}
			old.BinaryData, old.OwnerReferences = cm.BinaryData, cm.OwnerReferences
			setSeal(old, d.seal(run.ID))
			return nil
		})
	}
	return explain(err, "create configmap "+cm.Name, cm.Namespace)
}

// changeConfigMap changes a run's ConfigMap. It retries if other clients change it at the same time.
func changeConfigMap(
	ctx context.Context, client kubernetes.Interface, namespace, run string, change func(*corev1.ConfigMap) error,
) error {
	configMaps, what := client.CoreV1().ConfigMaps(namespace), "configmap "+Name(run)
	return retry(ctx, conflicts(), what, func() error {
		cm, err := configMaps.Get(ctx, Name(run), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get %s: %w", what, err)
		}
		if !isOfRun(cm, run) {
			return fmt.Errorf("%s/%s was not changed, because it does not belong to run %s", namespace, what, run)
		}
		if err := change(cm); err != nil {
			return err
		}
		// The resourceVersion is the precondition.
		_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: FieldManager})
		return explain(err, "change "+what, namespace)
	})
}

func isOfRun(cm *corev1.ConfigMap, run string) bool {
	return cm.Labels[ledger.LabelManagedBy] == ledger.ManagedBy && cm.Labels[ledger.LabelRun] == run
}

// ErrReverting reports that a run is being reverted, so its fault must not be armed again.
var ErrReverting = errors.New("another client is reverting the run")

// UpdateState replaces a run's state file with a disarmed one. Pods see it when their kubelet refreshes the volume; see
// Refresh. If the run's ConfigMap no longer exists, apierrors.IsNotFound reports true for the error.
func UpdateState(ctx context.Context, client kubernetes.Interface, namespace, run string, state []byte) error {
	return changeConfigMap(ctx, client, namespace, run, func(cm *corev1.ConfigMap) error {
		setState(cm, state)
		return nil
	})
}

// Arm is like UpdateState, but for an armed state. It returns ErrReverting if an undo has disarmed the run. The
// resourceVersion of the ConfigMap determines which client was first.
func Arm(ctx context.Context, client kubernetes.Interface, namespace, run string, state []byte) error {
	return changeConfigMap(ctx, client, namespace, run, func(cm *corev1.ConfigMap) error {
		if _, ends := cm.Annotations[reverting]; ends {
			return ErrReverting
		}
		setState(cm, state)
		return nil
	})
}

func setState(cm *corev1.ConfigMap, state []byte) {
	cm.BinaryData = maps.Clone(cm.BinaryData)
	if cm.BinaryData == nil {
		cm.BinaryData = map[string][]byte{}
	}
	cm.BinaryData[StateKey] = state
}

// ReadState returns a run's state file.
func ReadState(ctx context.Context, client kubernetes.Interface, namespace, run string) ([]byte, error) {
	cm, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, Name(run), metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("get configmap %s: %w", Name(run), err)
	case !isOfRun(cm, run):
		return nil, fmt.Errorf("configmap %s/%s does not belong to run %s", namespace, Name(run), run)
	}
	state, ok := cm.BinaryData[StateKey]
	if !ok {
		return nil,
			fmt.Errorf("configmap %s/%s contains no state, so another client must have changed it", namespace, Name(run))
	}
	return state, nil
}

// deleteConfigMap deletes the ConfigMap of a run if it exists and belongs to the run.
func deleteConfigMap(ctx context.Context, client kubernetes.Interface, namespace, run string) error {
	configMaps := client.CoreV1().ConfigMaps(namespace)
	cm, err := configMaps.Get(ctx, Name(run), metav1.GetOptions{})
	if err == nil && isOfRun(cm, run) {
		err = configMaps.Delete(ctx, cm.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(cm.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete configmap %s: %w", Name(run), err)
	}
	return nil
}

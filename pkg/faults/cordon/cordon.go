// Package cordon implements a run that makes a node unschedulable, as a remediator would. The run can be reverted.
//
// The API server records which client set spec.unschedulable. Each run uses its own field manager, so the undo needs
// nothing from the record: it uncordons the node only if this run has cordoned it. If another client also cordons the
// node in the meantime, the node does not change, so the undo cannot detect this.
package cordon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// UndoKind is the ledger.Undo.Kind for cordons.
const UndoKind = "cordon"

// KindScheduling is the kind of the target. It is not Node, because the run that injects the fault already locks
// the node.
const KindScheduling = "NodeScheduling"

// manager is the prefix of the field managers of all runs.
const manager = "gpu-fault-cordon-"

// Manager returns the field manager with which a run cordons nodes.
func Manager(run string) string { return manager + run }

// IsManager reports whether a field manager belongs to a run.
func IsManager(name string) bool { return strings.HasPrefix(name, manager) }

// RunOf returns the run that has cordoned a node and has not uncordoned it, or "".
func RunOf(node metav1.Object) string {
	for _, name := range owners(node) {
		if run, is := strings.CutPrefix(name, manager); is {
			return run
		}
	}
	return ""
}

// Change returns the change that cordons a node, for use in a fault.Plan.
func Change(client kubernetes.Interface, node string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: KindScheduling, Name: node}, Action: "cordon the node",
		Undo: ledger.Undo{Kind: UndoKind},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return apply(ctx, client, node, r.Run().ID)
		},
	}
}

// Check returns an error if a node is already cordoned. It is for use in Plan.Checks.
func Check(ctx context.Context, client kubernetes.Interface, node string) error {
	_, err := schedulable(ctx, client, node)
	return err
}

func schedulable(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	if node.Spec.Unschedulable {
		return nil, fmt.Errorf("node %s is already cordoned%s", name, by(owners(node)))
	}
	return node, nil
}

func apply(ctx context.Context, client kubernetes.Interface, node, run string) ([]ledger.Evidence, error) {
	err := retry.RetryOnConflict(busy, func() error {
		now, err := schedulable(ctx, client, node)
		if err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		return patch(ctx, client, now, Manager(run), true)
	})
	if err != nil {
		return nil, err
	}
	now, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s back: %w", node, err)
	}
	if !now.Spec.Unschedulable {
		return nil, fmt.Errorf("node %s was immediately uncordoned by another client", node)
	}
	return []ledger.Evidence{{Source: "Node " + node, Time: time.Now().UTC(), Text: "spec.unschedulable is true"}}, nil
}

// patch sets spec.unschedulable if the node has not changed since it was read.
func patch(ctx context.Context, client kubernetes.Interface, read *corev1.Node, manager string, value any) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": read.UID, "resourceVersion": read.ResourceVersion},
		"spec":     map[string]any{"unschedulable": value},
	})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, read.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		return fmt.Errorf("patch node %s: %w", read.Name, err)
	}
	return nil
}

// busy is the backoff for a patch that conflicts with other clients. Many clients write to Nodes.
var busy = wait.Backoff{Steps: 20, Duration: 50 * time.Millisecond}

// owners returns the field managers that have set spec.unschedulable.
func owners(node metav1.Object) []string {
	field := fieldpath.MakePathOrDie("spec", "unschedulable")
	var all []string
	for _, entry := range node.GetManagedFields() {
		if entry.Subresource == "" && entry.FieldsV1 != nil &&
			kubeedit.ParseFields(entry.FieldsV1.GetRawBytes()).Has(field) {
			all = append(all, entry.Manager)
		}
	}
	slices.Sort(all)
	return all
}

func by(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " by " + strings.Join(names, ", ")
}

// Undoer uncordons nodes. Client may be nil if only Describe is called.
type Undoer struct{ Client kubernetes.Interface }

var _ fault.Needer = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(ledger.Step) string { return "uncordon the node, if this run has cordoned it" }

// Needs implements fault.Needer.
func (u Undoer) Needs(ledger.Step, string) []fault.Permission { return Permissions() }

// Feature implements fault.Needer.
func (Undoer) Feature() string { return "" }

// Permissions returns the permissions that cordoning and uncordoning need, in addition to those for every fault.
func Permissions() []fault.Permission {
	return []fault.Permission{{Verb: "get", Resource: "nodes"}, {Verb: "patch", Resource: "nodes"}}
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(
	ctx context.Context, run ledger.Run, step ledger.Step,
) (state ledger.State, said string, err error) {
	if u.Client == nil {
		return "", "", errors.New("undoing the change requires a connection to the cluster")
	}
	if step.Target.Kind != KindScheduling {
		return "", "", fmt.Errorf("the record's undo data is rejected: the target is %s, not a "+
			"%s", step.Target, KindScheduling)
	}
	err = retry.RetryOnConflict(busy, func() error {
		node, err := u.Client.CoreV1().Nodes().Get(ctx, step.Target.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			state, said = ledger.StateReverted, "the node no longer exists"
			return nil
		case err != nil:
			return fmt.Errorf("get node %s: %w", step.Target.Name, err)
		case !node.Spec.Unschedulable:
			state, said = ledger.StateReverted, "the node is schedulable"
			return nil
		}
		if set := owners(node); !slices.Equal(set, []string{Manager(run.ID)}) {
			state = ledger.StateSuperseded
			others := by(slices.DeleteFunc(set, func(name string) bool { return name == Manager(run.ID) }))
			said = "the node stays cordoned, because it was also cordoned" + cmp.Or(others, " by an unknown client")
			return nil
		}
		if err := patch(ctx, u.Client, node, Manager(run.ID), nil); err != nil {
			return err
		}
		state, said = ledger.StateReverted, "the node is schedulable again"
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return state, said, nil
}

package cudashim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Injection adds the shim to the pod templates of one workload.
type Injection struct {
	Cluster   *Cluster
	Workload  *Workload
	Selection Selection
	Pin       *Pin // nil means no restriction on nodes
	// Preloads are the LD_PRELOAD values that images themselves set, by the image's name in the template. If the
	// template does not set the variable, the image's value is kept after the shim.
	Preloads map[string]string
	// Libraries are the shims by node architecture (amd64, arm64). There is one for each architecture returned by
	// Architectures.
	Libraries map[string][]byte
	// Library is the file name. Empty means LibraryName. Variable is the variable that loads the library. Empty means
	// PreloadVar.
	Library, Variable string
	// State returns the armed state file of a run.
	State func(run ledger.Run) ([]byte, error)
	// Disarmed returns the state file that the undo writes first, for processes that keep running. It may be nil.
	Disarmed func(run ledger.Run) ([]byte, error)
	// Recreate is the user's consent to delete and recreate objects with an immutable template, such as Jobs and
	// JobSets.
	Recreate bool
	// MayCrash reports whether the fault is active from the start, so that new pods may crash before they are ready.
	MayCrash bool
	// Prove is called after the rollout, and returns evidence that the shim is loaded. If Prove is nil, the rollout
	// itself is the evidence.
	Prove func(ctx context.Context, r fault.Recorder, pods []corev1.Pod) ([]ledger.Evidence, error)
	// Wait is the timeout of the rollout. 0 means that only the context's deadline applies.
	Wait time.Duration
}

// Change returns the change to the workload, for use in a fault.Plan.
func (in *Injection) Change(action string) fault.Change {
	return fault.Change{
		Target: in.Workload.Target(),
		Action: action,
		Undo:   ledger.Undo{Kind: UndoKind},
		Apply:  in.apply,
	}
}

func (in *Injection) apply(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
	if err := in.validate(); err != nil {
		return nil, err
	}
	run := r.Run()
	r.Progress("validating the change with the API server")
	p, err := in.plan(ctx, run.ID)
	if err != nil {
		return nil, err
	}
	if in.Disarmed != nil {
		if p.data.Disarmed, err = in.Disarmed(run); err != nil {
			return nil, fmt.Errorf("create the disarmed state file: %w", err)
		}
	}
	if err := record(ctx, r, p.data); err != nil {
		return nil, err
	}
	r.Progress("creating configmap " + p.data.ConfigMap)
	if err := in.createConfigMap(ctx, run, p.data); err != nil {
		return nil, err
	}
	r.Progress("changing " + in.Workload.Ref())
	if err := in.write(ctx, r, p); err != nil {
		return nil, err
	}
	evidence := []ledger.Evidence{{
		Source: in.Workload.Ref(), Time: now(), Text: count.Of(len(p.data.Edits), "edit") + " in its pod templates",
	}}
	rollout, err := in.Cluster.Wait(ctx, &p.data, in.Wait, in.MayCrash, r.Progress)
	if err != nil {
		return evidence, err
	}
	evidence = append(evidence,
		ledger.Evidence{Source: "pods of " + in.Workload.Ref(), Time: now(), Text: rollout.Text})
	if in.Prove == nil || rollout.Later {
		return evidence, nil
	}
	more, err := in.Prove(ctx, r, rollout.Pods)
	return append(evidence, more...), err
}

// save saves undo data that differs from the data saved by createConfigMap: first its seal, then the undo data in the
// ledger.
func (in *Injection) save(ctx context.Context, r fault.Recorder, d Data) error {
	run := r.Run().ID
	if err := (configMapKeeper{in.Cluster.Client, d.Namespace, run}).Keep(ctx, d.seal(run)); err != nil {
		return err
	}
	return record(ctx, r, d)
}

// record saves the undo data in the ledger.
func record(ctx context.Context, r fault.Recorder, d Data) error {
	if err := d.validate(); err != nil { // never start a change that could not be undone
		return err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode the undo: %w", err)
	}
	return r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = data })
}

// write writes the change. If another client has written the object first, the change is planned again for the new
// content, and recorded before it is written.
func (in *Injection) write(ctx context.Context, r fault.Recorder, p *plan) error {
	if p.data.Recreated != nil {
		return in.recreate(ctx, r, p)
	}
	first := true
	return retry(ctx, in.Cluster.conflicts(), in.Workload.Ref(), func() error {
		if !first {
			if err := in.follow(ctx, r, p); err != nil {
				return err
			}
		}
		first = false
		stored, err := in.Cluster.patch(ctx, &Workload{Object: p.object, Resource: in.Workload.Resource}, p.changed,
			false)
		if err != nil {
			return explain(err, "change "+in.Workload.Ref(), in.Workload.Object.GetNamespace())
		}
		return in.stored(ctx, r, p, stored)
	})
}

// follow adapts the plan to an object that another client has changed. If the undo stays the same, there is no new dry
// run and nothing new to record, which shortens the time in which another conflict can occur.
func (in *Injection) follow(ctx context.Context, r fault.Recorder, p *plan) error {
	now, err := in.Cluster.again(ctx, in.Workload)
	if err != nil {
		return err
	}
	object, edits, _, err := in.put(now, p.additions)
	if err != nil {
		return err
	}
	if sum(now.Object) == p.data.Before && sameUndo(edits, p.data.Edits) {
		p.object, p.changed = now.Object, &unstructured.Unstructured{Object: object}
		return nil
	}
	again, err := in.plan(ctx, r.Run().ID)
	if err != nil {
		return err
	}
	again.data.Disarmed = p.data.Disarmed
	*p = *again
	return in.save(ctx, r, p.data)
}

// sameUndo reports whether two lists of edits are undone in the same way. The injected values may differ because of
// defaults that the API server sets.
func sameUndo(a, b []kubeedit.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b kubeedit.Edit) bool {
		return a.Path.String() == b.Path.String() && a.Element == b.Element && a.Made == b.Made &&
			kubeedit.Same(json.RawMessage(orNull(a.Was)), orNull(b.Was))
	})
}

// stored adopts the values that the API server stored if they differ from those of the dry run.
func (in *Injection) stored(ctx context.Context, r fault.Recorder, p *plan, stored *unstructured.Unstructured) error {
	before := kubeedit.Encode(p.data.Edits)
	if dropped := p.data.adopt(stored); dropped != nil {
		return fmt.Errorf("%s: the API server dropped %s", in.Workload.Ref(), dropped)
	}
	if kubeedit.Same(p.data.Edits, before) {
		return nil
	}
	return in.save(ctx, r, p.data)
}

// recreate deletes the object and recreates it with the additions.
func (in *Injection) recreate(ctx context.Context, r fault.Recorder, p *plan) error {
	r.Progress("deleting " + in.Workload.Ref() + " and its pods to recreate it")
	created, err := in.Cluster.replace(ctx, &Workload{Object: p.object, Resource: in.Workload.Resource}, p.changed,
		mayRecreate)
	if err != nil {
		return err
	}
	p.data.Recreated.UID = string(created.GetUID())
	if err := in.save(ctx, r, p.data); err != nil {
		return err
	}
	owner := ownerReference(created.GetAPIVersion(), created.GetKind(), created.GetName(), created.GetUID())
	return changeConfigMap(ctx, in.Cluster.Client, created.GetNamespace(), r.Run().ID,
		func(cm *corev1.ConfigMap) error {
			cm.OwnerReferences = []metav1.OwnerReference{owner}
			return nil
		})
}

// ownerReference makes the garbage collector delete the ConfigMap together with its workload. It does not block the
// deletion of the workload, because that would require more permissions.
func ownerReference(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid}
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

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

// Injection puts the shim into one workload.
type Injection struct {
	Cluster   *Cluster
	Workload  *Workload
	Selection Selection
	Pin       *Pin // nil: wherever the scheduler wants
	// Preloads are what images set as LD_PRELOAD by themselves, by the image's name in the template: it is chained
	// where the template sets none.
	Preloads map[string]string
	// Libraries are the shims by architecture, as nodes call it: amd64, arm64. One for each that Architectures told.
	Libraries map[string][]byte
	// Library is the file's name; empty means LibraryName. Variable is how it is loaded; empty means PreloadVar.
	Library, Variable string
	// State is the armed state file for a run.
	State func(run ledger.Run) ([]byte, error)
	// Disarmed is the state file that the undo writes first, for processes that go on; nil: none.
	Disarmed func(run ledger.Run) ([]byte, error)
	// Recreate is the user's consent to delete and create again what cannot be changed: Jobs, JobSets.
	Recreate bool
	// MayCrash reports whether the fault is there from the start, so that new pods may crash and never get ready.
	MayCrash bool
	// Prove says how it shows that the shim is loaded, after the rollout. Nil: the rollout is the proof.
	Prove func(ctx context.Context, r fault.Recorder, pods []corev1.Pod) ([]ledger.Evidence, error)
	// Wait is how long a rollout may take; 0 means as long as the context.
	Wait time.Duration
}

// Change returns the change to the workload, for a fault.Plan.
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
	r.Progress("trying the change on the API server")
	p, err := in.plan(ctx, run.ID)
	if err != nil {
		return nil, err
	}
	if in.Disarmed != nil {
		if p.data.Disarmed, err = in.Disarmed(run); err != nil {
			return nil, fmt.Errorf("make the disarmed state file: %w", err)
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

// save keeps another undo than createConfigMap knows: first its seal, then the undo in the ledger.
func (in *Injection) save(ctx context.Context, r fault.Recorder, d Data) error {
	run := r.Run().ID
	if err := (configMapKeeper{in.Cluster.Client, d.Namespace, run}).Keep(ctx, d.seal(run)); err != nil {
		return err
	}
	return record(ctx, r, d)
}

// record keeps the undo in the ledger.
func record(ctx context.Context, r fault.Recorder, d Data) error {
	if err := d.validate(); err != nil { // what could not be undone is not begun
		return err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode the undo: %w", err)
	}
	return r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = data })
}

// write makes the change. When somebody is faster it is planned anew on what they wrote, and the ledger hears of it
// first.
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

// follow makes the plan fit what somebody has made of the object meanwhile. Where the undo stays the same there is
// nothing to try and to record anew, and so less time for the next change of somebody's.
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

// sameUndo reports whether edits undo the same. Our values differ by the API server's defaults.
func sameUndo(a, b []kubeedit.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b kubeedit.Edit) bool {
		return a.Path.String() == b.Path.String() && a.Element == b.Element && a.Made == b.Made &&
			kubeedit.Same(json.RawMessage(orNull(a.Was)), orNull(b.Was))
	})
}

// stored takes over what the API server really keeps, where that is not what it said when it was tried.
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

// recreate deletes the object and creates it again with the additions.
func (in *Injection) recreate(ctx context.Context, r fault.Recorder, p *plan) error {
	r.Progress("deleting " + in.Workload.Ref() + " and its pods, to create it again")
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

// ownerReference lets the ConfigMap go with its workload. It does not hold up the workload's deletion, which would need
// more rights.
func ownerReference(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid}
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

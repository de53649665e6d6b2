package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// UndoKind is the ledger.Undo.Kind of steps that only check or reserve something: there is nothing to undo, but their
// locks are held until the exercise ends.
const UndoKind = "exercise"

// Undoer completes steps of UndoKind.
type Undoer struct{}

var _ fault.Undoer = Undoer{}

// Describe implements fault.Undoer.
func (Undoer) Describe(step ledger.Step) string {
	return fmt.Sprintf("releases %s; nothing to undo", step.Target)
}

// Undo implements fault.Undoer.
func (Undoer) Undo(context.Context, ledger.Run, ledger.Step) (ledger.State, string, error) {
	return ledger.StateReverted, "nothing to undo", nil
}

// look returns a change that does not change anything, but must succeed before the next change.
func look(
	target ledger.Target, action string, do func(ctx context.Context, r fault.Recorder) (saw string, err error),
) fault.Change {
	return fault.Change{
		Target: target, Action: action, Undo: ledger.Undo{Kind: UndoKind},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			saw, err := do(ctx, r)
			if err != nil {
				return nil, err
			}
			return []ledger.Evidence{{Source: "the lab", Time: time.Now().UTC(), Text: saw}}, nil
		},
	}
}

// steps adds the changes of steps, with their permissions.
func (s *start) steps(list []scenario.Step) error {
	for _, step := range list {
		if err := s.step(step); err != nil {
			return fmt.Errorf("step %s: %w", nameOf(step), err)
		}
	}
	return nil
}

func (s *start) step(step scenario.Step) error {
	action := nameOf(step)
	if s.lab.fake.step != nil && len(step.Wait) == 0 {
		s.add(nil, s.lab.fake.step(action, step))
		return nil
	}
	switch {
	case step.Create != nil:
		return s.creation(action, *step.Create)
	case step.Patch != nil:
		patching := &objects.Patching{
			Dynamic: s.lab.Dynamic, Mapper: s.lab.Mapper, LedgerNamespace: s.lab.LedgerNamespace,
			APIVersion: step.Patch.Object.APIVersion, Kind: step.Patch.Object.Kind,
			Namespace: step.Patch.Object.Namespace, Name: step.Patch.Object.Name,
			Merge: step.Patch.Merge, JSON: step.Patch.JSON, Subresource: step.Patch.Subresource,
		}
		needs, err := patching.Permissions()
		if err != nil {
			return err
		}
		s.add(needs, patching.Change(action))
		if !s.makes(step.Patch.Object) { // otherwise, the object does not exist yet
			s.plan.Checks = append(s.plan.Checks, patching.Check)
		}
		return nil
	case len(step.Wait) > 0:
		s.add(nil, look(s.home(), action, func(ctx context.Context, _ fault.Recorder) (string, error) {
			return s.hold(ctx, "the checks before the next step do not pass", step.Wait)
		}))
		return nil
	case step.Delete != nil, len(step.Replace) > 0, step.NodeShell != nil, step.InPods != nil:
		return errors.New(
			"delete, replace, nodeShell and inPods are supported only in attempts: changes to a lab must be reversible",
		)
	}
	return s.faulty(action, step)
}

// faulty adds steps that do not create or patch objects.
func (s *start) faulty(action string, step scenario.Step) error {
	if s.lab.Faults == nil {
		return errors.New("node and process faults are not supported here")
	}
	switch {
	case step.XID != nil:
		s.pods = true
		changes, needs, err := s.lab.Faults.XID(*step.XID)
		s.add(needs, changes...)
		return err
	case step.Runtime != nil:
		s.pods, s.ends = true, true
		changes, needs, err := s.lab.Faults.Runtime(*step.Runtime, s.r.Public.Access.NodeShell)
		s.add(needs, changes...)
		return err
	case step.Firewall != nil:
		s.pods, s.ends = true, true
		changes, needs, err := s.lab.Faults.Firewall(*step.Firewall)
		s.add(needs, changes...)
		return err
	case step.Device != nil:
		s.pods, s.ends = true, true
		changes, needs, err := s.lab.Faults.Device(*step.Device)
		s.add(needs, changes...)
		return err
	case step.CUDA != nil:
		s.ends = true
		what := step.CUDA.Workload
		s.add(nil, fault.Change{
			Target: ledger.Target{Kind: what.Kind, Namespace: what.Namespace, Name: what.Name}, Action: action,
			Undo: ledger.Undo{Kind: cudashim.UndoKind},
			Apply: s.lazily(func(ctx context.Context, _ ledger.Run) (fault.Change, error) {
				changes, _, err := s.lab.Faults.CUDA(ctx, *step.CUDA)
				if err == nil && len(changes) != 1 {
					err = fmt.Errorf("%s, expected one", count.Of(len(changes), "change"))
				}
				if err != nil {
					return fault.Change{}, err
				}
				return changes[0], nil
			}),
		})
		return nil
	}
	return errors.New("the step has no action")
}

// creation adds a change that creates objects, with the shim injected if the step specifies one. The shim's
// state contains the run's ID, so it is created together with the run.
func (s *start) creation(action string, step scenario.Create) error {
	plain := &objects.Creation{
		Dynamic: s.lab.Dynamic, Mapper: s.lab.Mapper, LedgerNamespace: s.lab.LedgerNamespace,
		Objects: s.manifests(step.Objects),
	}
	needs, err := plain.Permissions()
	if err != nil {
		return err
	}
	change := plain.Change(action)
	s.plan.Checks = append(s.plan.Checks, plain.Check)
	if step.Shim == nil {
		s.add(needs, change)
		return nil
	}
	if s.lab.Faults == nil {
		return errors.New("process faults are not supported here")
	}
	s.ends = true
	change.Apply = s.lazily(func(_ context.Context, run ledger.Run) (fault.Change, error) {
		with, err := s.shimmed(step, run)
		if err != nil {
			return fault.Change{}, err
		}
		later := &objects.Creation{
			Dynamic: plain.Dynamic, Mapper: plain.Mapper, LedgerNamespace: plain.LedgerNamespace, Objects: with,
		}
		return later.Change(action), nil
	})
	change.Undo.Data = nil
	maps := fault.Permission{Resource: "configmaps", Namespace: change.Target.Namespace}
	for _, verb := range []string{"create", "get", "delete"} {
		maps.Verb = verb
		needs = append(needs, maps)
	}
	s.add(needs, change)
	return nil
}

// makes reports whether the exercise itself creates an object.
func (s *start) makes(ref scenario.Ref) bool {
	return slices.ContainsFunc(made(s.r),
		func(object *unstructured.Unstructured) bool { return sameObject(refOf(object), ref) })
}

// manifests returns copies of objects, secured so that the candidate cannot become root on the nodes.
func (s *start) manifests(list []scenario.Object) []*unstructured.Unstructured {
	copies := make([]*unstructured.Unstructured, len(list))
	for i, object := range list {
		copies[i] = (&unstructured.Unstructured{Object: object}).DeepCopy()
	}
	s.secure(copies)
	return copies
}

// lazily adds a change that is planned only when its turn comes. The undo is recorded in the ledger before the change
// is applied.
func (s *start) lazily(
	make func(ctx context.Context, run ledger.Run) (fault.Change, error),
) func(context.Context, fault.Recorder) ([]ledger.Evidence, error) {
	return func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		change, err := make(ctx, r.Run())
		if err != nil {
			return nil, err
		}
		if len(change.Undo.Data) > 0 {
			if err := r.Save(ctx, func(step *ledger.Step) { step.Undo = change.Undo }); err != nil {
				return nil, err
			}
		}
		return change.Apply(ctx, r)
	}
}

// nameOf describes a step, for the trainer and for the record.
func nameOf(step scenario.Step) string {
	switch {
	case step.Name != "":
		return step.Name
	case step.Create != nil && len(step.Create.Objects) > 0:
		first := &unstructured.Unstructured{Object: step.Create.Objects[0]}
		return fmt.Sprintf("create %s, %s %s first", count.Of(len(step.Create.Objects), "object"), first.GetKind(),
			first.GetName())
	case step.Patch != nil:
		return fmt.Sprintf("patch %s %s", step.Patch.Object.Kind, step.Patch.Object.Name)
	case step.XID != nil:
		return fmt.Sprintf("XID %s on node %s", step.XID.Codes, step.XID.Node)
	case step.Runtime != nil:
		return fmt.Sprintf("containerd on node %s: %s", step.Runtime.Node, step.Runtime.Mode)
	case step.Firewall != nil:
		return fmt.Sprintf("firewall rule on node %s: %s for port %d", step.Firewall.Node, step.Firewall.Drop,
			step.Firewall.Port)
	case step.Device != nil:
		return fmt.Sprintf("GPU %s on node %s: unhealthy", step.Device.GPU, step.Device.Node)
	case step.CUDA != nil:
		return fmt.Sprintf("CUDA of %s %s", step.CUDA.Workload.Kind, step.CUDA.Workload.Name)
	case len(step.Wait) > 0:
		return "wait: " + step.Wait[0].Name
	case step.Delete != nil:
		return fmt.Sprintf("delete %s %s", step.Delete.Kind, step.Delete.Name)
	case len(step.Replace) > 0:
		first := &unstructured.Unstructured{Object: step.Replace[0]}
		return fmt.Sprintf("replace %s %s", first.GetKind(), first.GetName())
	case step.NodeShell != nil:
		return "script on node " + step.NodeShell.Node
	case step.InPods != nil:
		return fmt.Sprintf("in the pods %s in namespace %s", step.InPods.Labels, step.InPods.Namespace)
	}
	return "nothing"
}

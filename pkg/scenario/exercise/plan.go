package exercise

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// start is an exercise that is being started.
type start struct {
	lab     *Lab
	session *fault.Session
	r       *scenario.Resolved
	options StartOptions
	clock   func() time.Time

	plan       fault.Plan
	namespaces []string
	owned      []scenario.Ref
	account    Account
	probe      string // label value for check pods
	pods       bool   // whether a step starts debug pods
	ends       bool   // whether a step expires on its own, so its expiry must be recorded

	before     *baseline.Baseline
	e          *Exercise // as stored; nil before it is stored
	kubeconfig []byte
	failed     error // the reason why the lab is not as expected
}

// begin plans an exercise. It changes nothing.
func (l *Lab) begin(ctx context.Context, r *scenario.Resolved, options StartOptions) (*start, error) {
	if r.Public.Access.Home() == "" {
		return nil, fmt.Errorf("scenario %q has no namespace for the candidate", r.Metadata.Name)
	}
	if err := access.Validate(r.Public.Access, l.LedgerNamespace); err != nil {
		return nil, err
	}
	word, err := ledger.NewID("c", rand.Reader) // names the candidate's account; must not reveal the run
	if err != nil {
		return nil, err
	}
	probe, err := ledger.NewID("probe", rand.Reader)
	if err != nil {
		return nil, err
	}
	s := &start{
		lab: l, session: l.session(false), r: r, options: options, clock: l.clock(ctx), namespaces: namespacesOf(r),
	}
	s.owned = ownedBy(r, s.namespaces)
	s.account.ID, s.probe = word, probe
	s.account.Namespace, s.account.Name = access.Account(word)
	if err := s.makePlan(); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", r.Metadata.Name, err)
	}
	return s, nil
}

func (s *start) makePlan() error {
	s.add(nil, look(s.home(), "record the exercise", func(ctx context.Context, r fault.Recorder) (string, error) {
		return "stored in secret " + r.Run().ID, s.record(ctx, r)
	}))
	for _, namespace := range s.namespaces {
		s.add(nil, look(namespaceTarget(namespace), "reserve namespace "+namespace,
			func(context.Context, fault.Recorder) (string, error) {
				return "reserved by its lock", nil
			}))
	}
	if err := s.simulate(); err != nil {
		return err
	}
	if err := s.steps(s.r.Setup); err != nil {
		return err
	}
	s.stage("verify that the lab is healthy", "the lab did not become healthy", s.r.Healthy,
		func(e *Exercise, now time.Time) {
			e.Phase, e.HealthyAt = Healthy, now
		})
	if err := s.steps(s.r.Inject); err != nil {
		return err
	}
	s.stage("record that the fault is in place", "", nil,
		func(e *Exercise, now time.Time) { e.Phase, e.InjectedAt = Injected, now })
	s.stage("verify that the lab is broken", "the lab did not become broken", s.r.Sealed.Broken,
		func(e *Exercise, now time.Time) {
			e.Phase, e.BrokenAt = Broken, now
		})
	if err := s.rights(); err != nil {
		return err
	}
	s.add(nil, look(s.home(), "hand the lab over", s.handOver))

	s.plan.Fault, s.plan.Summary, s.plan.Command = Fault, "exercise "+s.r.Metadata.Name, s.options.Command
	s.plan.InOrder, s.plan.Quiet, s.plan.NoPods, s.plan.Allow = true, true, !s.pods, s.lab.Allow
	s.plan.Needs = fault.Permissions(s.plan.Needs, needed(s.lab.LedgerNamespace),
		access.Permissions(s.account.ID, s.r.Public.Access), s.looks())
	if s.ends {
		s.plan.TTL = s.options.timeBox(s.r) + grace
	} else {
		s.plan.Reason = "exercise, active until `scenario end`"
	}
	s.plan.Checks = append(s.checks(), s.plan.Checks...)
	return nil
}

// looks returns the permissions that the scenario's checks need.
func (s *start) looks() []fault.Permission {
	if s.lab.Mapper == nil {
		return nil
	}
	checks := slices.Concat(s.r.Healthy, s.r.Sealed.Broken, s.r.Sealed.Grade.Fixed, s.r.Sealed.Grade.Unchanged)
	for _, step := range slices.Concat(s.r.Setup, s.r.Inject) {
		checks = append(checks, step.Wait...)
	}
	return (&check.Checker{Mapper: s.lab.Mapper}).Permissions(checks)
}

// home returns the target that the exercise locks: the candidate's first namespace, or an existing workload.
func (s *start) home() ledger.Target {
	access := s.r.Public.Access
	if w := access.Workload; w != nil && len(access.Namespaces) == 0 {
		return ledger.Target{Kind: w.Kind, Namespace: w.Namespace, Name: w.Name}
	}
	return namespaceTarget(access.Home())
}

func namespaceTarget(name string) ledger.Target {
	return ledger.Target{Kind: kindNamespace, Name: name}
}

func (s *start) add(needs []fault.Permission, changes ...fault.Change) {
	s.plan.Needs = append(s.plan.Needs, needs...)
	s.plan.Changes = append(s.plan.Changes, changes...)
}

// stage adds a phase that the exercise reaches when the checks hold.
func (s *start) stage(action, otherwise string, checks []scenario.Check, reached func(*Exercise, time.Time)) {
	s.add(nil, look(s.home(), action, func(ctx context.Context, _ fault.Recorder) (string, error) {
		saw, err := s.hold(ctx, otherwise, checks)
		if err != nil {
			return "", err
		}
		return saw, s.reached(ctx, reached)
	}))
}

// rights adds the candidate's account and permissions.
func (s *start) rights() error {
	if s.lab.fake.rights != nil {
		s.add(nil, s.lab.fake.rights())
		return nil
	}
	list := access.Objects(s.account.ID, s.lab.LedgerNamespace, s.r.Public.Access)
	for _, object := range list {
		if ref := refOf(object); !within(ref, s.namespaces) && !within(ref, s.account.namespaces()) {
			s.owned = append(s.owned, ref)
		}
	}
	rights := &objects.Creation{
		Dynamic: s.lab.Dynamic, Mapper: s.lab.Mapper, LedgerNamespace: s.lab.LedgerNamespace, Objects: list,
		Target: ledger.Target{Kind: kindNamespace, Name: s.account.Namespace},
	}
	needs, err := rights.Permissions()
	if err != nil {
		return err
	}
	s.add(needs, rights.Change("give the candidate access"))
	return nil
}

// secure prevents pods from giving the candidate root on the nodes.
func (s *start) secure(list []*unstructured.Unstructured) { access.Secure(list, s.r.Public.Access) }

// shimmed returns a step's objects with the shim injected, preceded by a ConfigMap with the shim for each namespace.
func (s *start) shimmed(step scenario.Create, run ledger.Run) ([]*unstructured.Unstructured, error) {
	libraries, state, err := s.lab.Faults.Shim(*step.Shim)
	if err != nil {
		return nil, err
	}
	content, err := state(run)
	if err != nil {
		return nil, err
	}
	shim := cudashim.Shim{ConfigMap: "node-libs-" + shorten(s.account.ID), Libraries: libraries, State: content}
	with := s.manifests(step.Objects)
	var maps []*unstructured.Unstructured
	var in []string
	for _, object := range with {
		if !hasPods(object) {
			continue
		}
		if err := cudashim.AddShim(object, shim); err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if namespace := object.GetNamespace(); !slices.Contains(in, namespace) {
			in = append(in, namespace)
			one, err := cudashim.ShimConfigMap(namespace, shim)
			if err != nil {
				return nil, err
			}
			maps = append(maps, one)
		}
	}
	if len(maps) == 0 {
		return nil, fmt.Errorf("no object has a pod template to inject the shim into")
	}
	return append(maps, with...), nil
}

func hasPods(object *unstructured.Unstructured) bool {
	return object.GetKind() == "Pod" || len(cudashim.Templates(object)) > 0
}

// shorten returns the random part of an ID.
func shorten(id string) string { return id[max(0, len(id)-6):] }

// handOver issues and verifies the kubeconfig, records the state of the cluster, and starts the candidate's
// time.
func (s *start) handOver(ctx context.Context, r fault.Recorder) (string, error) {
	if err := s.lab.verify(ctx, s); err != nil {
		return "", err
	}
	snapshot, err := s.lab.capture(ctx, s.whole(), s.namespaces...)
	if err != nil {
		return "", err
	}
	if err := s.lab.addNodes(ctx, s.r, snapshot); err != nil {
		return "", err
	}
	n, err := s.lab.keep(ctx, s.e, snapBegin, snapshot)
	if err != nil {
		return "", err
	}
	if err := s.write(ctx, r, map[string]string{snapBegin: s.e.seals[snapBegin]}); err != nil {
		return "", err
	}
	began := s.clock()
	issued, err := s.lab.issue(ctx, s.account.ID, s.r.Public.Access, began.Add(s.options.timeBox(s.r)))
	if err != nil {
		return "", err
	}
	s.kubeconfig = issued.Kubeconfig
	return "the candidate can work until " + issued.Until.Format(time.RFC3339),
		s.reached(ctx, func(e *Exercise, now time.Time) {
			e.Phase, e.Started, e.Until = InProgress, now, now.Add(s.options.timeBox(s.r))
			e.Account.Until, e.Snapshots[snapBegin] = issued.Until, n
		})
}

// verify verifies that the candidate's permissions are as expected.
func (l *Lab) verify(ctx context.Context, s *start) error {
	if l.fake.issue != nil {
		return nil
	}
	notes, err := access.Verify(ctx, l.Client, s.account.ID, l.LedgerNamespace, s.r.Public.Access)
	for _, note := range notes {
		l.say("%s", note)
	}
	if err != nil {
		return fmt.Errorf("the candidate's access is not as expected: %w", err)
	}
	return nil
}

// issue creates a kubeconfig for a candidate.
func (l *Lab) issue(ctx context.Context, account string, what scenario.Access, until time.Time) (access.Issued, error) {
	if l.fake.issue != nil {
		return l.fake.issue(until)
	}
	issued, err := access.Kubeconfig(ctx, l.Client, l.Config, account, what, until)
	if err != nil {
		return issued, fmt.Errorf("create a kubeconfig for the candidate: %w", err)
	}
	if issued.Note != "" {
		l.say("%s", issued.Note)
	}
	return issued, nil
}

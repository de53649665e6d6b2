package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// listed is the maximum number of differences in a report.
const listed = 30

// Grade grades the candidate's work so far, and stores the report. It may be repeated. It returns a *PhaseError before
// the exercise is handed over and after it ends. It does not return an error if the candidate fails.
func (l *Lab) Grade(ctx context.Context, id string) (*Report, error) {
	return l.grade(ctx, id, full, nil)
}

// GradeRecorded is like Grade, and adds data from a transcript of the candidate's requests. It returns an error
// without grading if the transcript is from another exercise.
func (l *Lab) GradeRecorded(ctx context.Context, id string, transcript *recorder.Transcript) (*Report, error) {
	return l.grade(ctx, id, full, transcript)
}

// patience determines how long grading waits for checks to hold.
type patience int

const (
	full  patience = iota // as specified by the checks
	hasty                 // for attempts that are expected to fail: stop after the failure
	none                  // do not wait
)

// grade grades the exercise; transcript may be nil.
func (l *Lab) grade(ctx context.Context, id string, waits patience, transcript *recorder.Transcript) (*Report, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	e, r, err := l.load(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := e.must("grade", e.Open()); err != nil {
		return nil, err
	}
	if e.Module == nil {
		r.Sealed.Grade = withoutModule(r.Sealed.Grade)
	}
	g := &grading{lab: l, e: e, r: r}
	g.report = newReport(e, r, l.clock(ctx)())
	g.report.Unchanged = slices.Repeat([]check.Result{{OK: true}}, len(r.Sealed.Grade.Unchanged))
	g.report.By = l.whoami(ctx)
	if transcript != nil {
		if err := g.report.retell(e, r.Sealed.RootCause, transcript, g.report.At); err != nil {
			return nil, err
		}
	}
	if err := g.reverted(ctx); err != nil {
		return nil, err
	}
	if err := g.look(ctx, waits); err != nil {
		return nil, err
	}
	if err := g.lasting(ctx); err != nil {
		return nil, err
	}
	g.report.judge(r.Sealed.Grade.Weights, g.spoiled)
	_, err = l.update(ctx, id, func(e *Exercise) error {
		if err := e.must("grade", e.Open()); err != nil {
			return err
		}
		e.Phase, e.Grades = Graded, append(e.Grades, g.report)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the exercise was graded (passed: %t, score %d), but the report could not be stored: %w",
			g.report.Passed, g.report.Score, err)
	}
	return &g.report, nil
}

// grading is an exercise that is being graded.
type grading struct {
	lab     *Lab
	e       *Exercise
	r       *scenario.Resolved
	report  Report
	begin   *baseline.Baseline // at handover
	spoiled string             // the reason why grading is pointless: the namespace was deleted
	// judged is the time at which the fixed checks were last evaluated; zero if never.
	judged time.Time
}

func newReport(e *Exercise, r *scenario.Resolved, now time.Time) Report {
	report := Report{
		APIVersion: APIVersion, Kind: KindReport, ID: e.ID, Scenario: e.Scenario, Title: e.Public.Title, Seed: e.Seed,
		At: now, Took: max(now.Sub(e.Started), 0), TimeBox: e.Until.Sub(e.Started), Late: now.After(e.Until),
		Diagnosis: e.Diagnosis, Hints: e.Hints, Simulated: e.Public.Simulated, Timeline: timeline(e, now),
	}
	if e.Diagnosis != nil {
		report.Diagnosed = scenario.Compare(r.Sealed.RootCause, *e.Diagnosis)
	}
	return report
}

// look collects the results: first whether the fault is fixed and stays fixed, then other changes.
func (g *grading) look(ctx context.Context, waits patience) error {
	begin, err := g.lab.snapshot(ctx, g.e, snapBegin)
	switch {
	case err != nil:
		return fmt.Errorf("exercise %s cannot be graded: %w", g.e.ID, err)
	case begin == nil:
		return fmt.Errorf("exercise %s cannot be graded: the ledger no longer contains the baseline of the cluster",
			g.e.ID)
	}
	if err := g.lab.verifySeals(ctx, g.e, sealExercise, sealScenario, snapBegin); err != nil {
		return err
	}
	g.begin = begin
	if g.spoiled, err = g.spoils(ctx); err != nil {
		return err
	}
	if err := g.lab.sweep(ctx, g.e, staleProbe); err != nil {
		return err
	}
	if g.spoiled != "" { // waiting is pointless
		waits = none
	}
	if g.e.Module != nil && g.spoiled == "" {
		if err := g.apply(ctx); err != nil {
			return err
		}
		if !g.report.Applied.OK() { // the attempt has already failed
			waits = none
		}
	}
	first := waits == hasty
	if first {
		if err := g.otherChanges(ctx, begin); err != nil {
			return err
		}
		if !g.clean() {
			waits = none
		}
	}
	if err := g.awaitFix(ctx, begin, waits); err != nil || first {
		return err
	}
	return g.otherChanges(ctx, begin)
}

// awaitFix checks whether the fault is fixed and stays fixed. It checks for workarounds during that time,
// because a workaround might be removed as soon as the result is known.
func (g *grading) awaitFix(ctx context.Context, begin *baseline.Baseline, waits patience) error {
	how := g.r.Sealed.Grade
	checks := slices.Concat(stable(g.settling(how.Fixed), how.StableFor), stable(how.Unchanged, how.StableFor))
	if waits == none {
		checks = atOnce(checks)
	}
	results, err := g.lab.check(ctx, g.sight(begin), checks)
	if err != nil {
		return fmt.Errorf("exercise %s: %w", g.e.ID, err)
	}
	g.report.Fixed = append(g.report.Applied.results(), results[:len(how.Fixed)]...)
	if len(how.Fixed) == 0 {
		g.judged = time.Now()
	}
	for _, result := range results[:len(how.Fixed)] {
		if result.LookedUntil.After(g.judged) {
			g.judged = result.LookedUntil
		}
	}
	for i, result := range results[len(how.Fixed):] {
		g.unchanged(i, result)
	}
	return nil
}

// unchanged merges another result of a check: a check that failed once stays failed.
func (g *grading) unchanged(i int, result check.Result) {
	if g.report.Unchanged[i].OK {
		g.report.Unchanged[i] = result
	}
}

// again repeats checks that were evaluated before the fix was verified, because a workaround may have been applied in
// the meantime.
func (g *grading) again(ctx context.Context, begin *baseline.Baseline) error {
	var at []int
	var checks []scenario.Check
	for i, one := range g.r.Sealed.Grade.Unchanged {
		seen := g.report.Unchanged[i]
		// A check with a probe may have used a pod that was created long before the evaluation.
		if seen.OK && (one.Probe != nil || !seen.LookedFrom.After(g.judged)) {
			at, checks = append(at, i), append(checks, one)
		}
	}
	results, err := g.lab.check(ctx, g.sight(begin), checks)
	if err != nil {
		return fmt.Errorf("exercise %s: %w", g.e.ID, err)
	}
	for i, result := range results {
		g.unchanged(at[i], result)
	}
	return nil
}

// reverted returns an error if the exercise's run was reverted, because the state of the cluster is then not the
// candidate's work.
func (g *grading) reverted(ctx context.Context) error {
	run, err := g.lab.Session.Ledger.Get(ctx, g.e.ID)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return &PhaseError{
			*g.e, "grade",
			"its run is no longer in the ledger; to end the exercise, run: " +
				g.lab.Session.Ledger.Command("scenario", "end", g.e.ID),
		}
	}
	if err == nil && run.IsClosed() {
		return &PhaseError{
			*g.e, "grade",
			"its run was " + run.Message + "; to end the exercise, run: " +
				g.lab.Session.Ledger.Command("scenario", "end", g.e.ID),
		}
	}
	return err
}

// clean reports whether all gates except the fixed gate hold.
func (g *grading) clean() bool {
	return g.report.unchangedGate().OK && g.report.collateralGate().OK
}

// otherChanges runs the checks for workarounds and for other changes since the handover.
func (g *grading) otherChanges(ctx context.Context, begin *baseline.Baseline) error {
	if err := g.again(ctx, begin); err != nil {
		return err
	}
	now, err := g.lab.capture(ctx, g.e.whole(), g.e.Namespaces...)
	if err != nil {
		return err
	}
	others, err := g.lab.others(ctx, g.e)
	if err != nil {
		return err
	}
	g.report.stop(g.e, g.e.state(now, g.lab.Mapper))
	candidate := writersOf(g.r.Public.Access, g.lab.Mapper)
	g.report.NotCompared = slices.Compact(slices.Sorted(slices.Values(slices.Concat(begin.Missing, now.Missing))))
	// Objects that the candidate deleted and recreated lack the label that undo uses to identify them.
	marked := scenario.Allowed{Fields: []string{"metadata.labels[" + objects.LabelInstance + "]"}}
	solutions := g.r.Sealed.Grade.Collateral.Allow
	allow := append(slices.Clone(solutions), marked)
	allow = append(allow, harmless(solutions, g.e.Namespaces)...)
	differences := baseline.Environments(baseline.Diff(begin, now), begin, now, g.e.Namespaces)
	allow = append(allow, probing(solutions, differences, begin.Get, now.Get)...)
	placed, err := g.lab.placing(ctx, solutions, differences, begin.Get, now.Get)
	if err != nil {
		return err
	}
	allow = append(allow, placed...)
	worsened(differences, g.e.Namespaces, func(ref scenario.Ref) bool { return candidate.may(ref) && !others(ref) },
		begin.Get, now.Get)
	damage := baseline.Collateral(differences, allow, func(ref scenario.Ref) bool {
		return others(ref) || within(ref, g.e.Account.namespaces()) || !candidate.may(ref) ||
			g.e.probes(ref, now.Get(ref))
	})
	damage = slices.DeleteFunc(damage, func(d baseline.Difference) bool {
		return d.Kind == baseline.Created && d.Note == "" && debugs(d.Ref, now.Get(d.Ref), g.e.Namespaces)
	})
	held, err := g.lab.held(ctx, g.e.Namespaces)
	if err != nil {
		return err
	}
	onNodes, err := g.onNodes(ctx, begin)
	if err != nil {
		return err
	}
	damage = slices.Concat(damage, held, onNodes)
	if len(damage) > listed {
		g.report.Omitted = len(damage) - listed
		damage = damage[:listed]
	}
	g.report.Collateral = damage
	return nil
}

// harmless returns changes that an honest candidate may make in addition to any solution, because they have no effect
// on what is graded: good housekeeping of a workload that a solution changes, notes on other objects that a solution
// changes, and objects that take effect only if a workload refers to them.
func harmless(allow []scenario.Allowed, namespaces []string) []scenario.Allowed {
	var all []scenario.Allowed
	for _, one := range allow {
		if len(one.Fields) > 0 && slices.Contains(workloads, one.Kind) {
			one.Fields, one.Created, one.Deleted = housekeeping, false, false
			all = append(all, one)
		}
		if len(one.Fields) > 0 && one.Kind != "" && !slices.Contains(workloads, one.Kind) {
			one.Fields, one.Created, one.Deleted = []string{"metadata.annotations"}, false, false
			if one.Kind == kindConfigMap || one.Kind == kindSecret {
				one.Fields = append(one.Fields, "immutable")
			}
			if one.Kind == "Service" {
				one.Fields = append(one.Fields, "metadata.labels")
			}
			all = append(all, one)
		}
	}
	all = append(all, scenario.Allowed{Kind: kindNode, Fields: []string{"metadata.annotations"}}) // a note
	for _, namespace := range namespaces {
		for _, kind := range scenario.Inert {
			all = append(all, scenario.Allowed{
				Kind: kind, Namespace: namespace, Created: true, Fields: []string{"metadata.annotations"},
			})
		}
		for _, kind := range workloads { // a note on any of them
			all = append(all, scenario.Allowed{
				Kind: kind, Namespace: namespace, Fields: []string{"metadata.annotations", "metadata.labels"},
			})
		}
	}
	return all
}

// probing allows new readiness and startup probes in containers that had none, because such probes can only delay the
// readiness of a workload that a solution changes. A probe that runs a command is not harmless, because the command may
// do anything.
func probing(
	allow []scenario.Allowed, differences []baseline.Difference, begin, now func(scenario.Ref) map[string]any,
) []scenario.Allowed {
	var all []scenario.Allowed
	for _, d := range differences {
		if d.Kind != baseline.Changed || !slices.ContainsFunc(allow, func(a scenario.Allowed) bool {
			return baseline.Concerns(a, d.Ref) && len(a.Fields) > 0 && slices.Contains(workloads, a.Kind)
		}) {
			continue
		}
		had := containersOf(begin(d.Ref))
		for name, container := range containersOf(now(d.Ref)) {
			for _, kind := range []string{"readinessProbe", "startupProbe"} {
				probe, _ := container[kind].(map[string]any)
				if probe == nil || probe["exec"] != nil || had[name] == nil || had[name][kind] != nil {
					continue
				}
				all = append(all, scenario.Allowed{
					Kind: d.Ref.Kind, Namespace: d.Ref.Namespace, Name: d.Ref.Name,
					Fields: []string{fmt.Sprintf("spec.template.spec.containers[%s].%s", name, kind)},
				})
			}
		}
	}
	return all
}

// workloads are the kinds for which harmless allows good housekeeping.
var workloads = []string{"Deployment", "StatefulSet", "DaemonSet", "Job"}

// debugs reports whether an object in one of the namespaces is a pod that requests no devices, such as a shell that
// remains from debugging.
func debugs(ref scenario.Ref, object map[string]any, namespaces []string) bool {
	if ref.Kind != "Pod" || ref.APIVersion != "v1" || !slices.Contains(namespaces, ref.Namespace) {
		return false
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &pod); err != nil {
		return false
	}
	return len(pod.Spec.ResourceClaims) == 0 && !slices.ContainsFunc(
		slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
			for resource := range c.Resources.Limits {
				if strings.Contains(string(resource), "/") {
					return true
				}
			}
			return false
		})
}

// housekeeping are the fields of a workload that every candidate may set.
var housekeeping = []string{
	"metadata.labels", "metadata.annotations", "spec.template.metadata", "spec.revisionHistoryLimit",
	"spec.minReadySeconds", "spec.progressDeadlineSeconds", "spec.strategy", "spec.updateStrategy",
	"spec.ttlSecondsAfterFinished", "spec.template.spec.restartPolicy", // for Jobs
	"spec.template.spec.terminationGracePeriodSeconds",
	// Kubernetes requires this request to equal the limit.
	"spec.template.spec.containers[*].resources.requests[nvidia.com/gpu]",
	"spec.template.spec.containers[*].resources.requests.cpu",
	"spec.template.spec.containers[*].resources.limits.cpu",
	"spec.template.spec.containers[*].resources.requests.memory",
	"spec.template.spec.containers[*].resources.limits.memory",
	"spec.template.spec.initContainers[*].resources.requests.cpu",
	"spec.template.spec.initContainers[*].resources.requests.memory",
	"spec.template.spec.containers[*].resources.requests[ephemeral-storage]",
	"spec.template.spec.containers[*].resources.limits[ephemeral-storage]",
}

// others returns a predicate for objects of other exercises that ran after this one began. Changes to these objects are
// not the candidate's damage.
func (l *Lab) others(ctx context.Context, e *Exercise) (func(scenario.Ref) bool, error) {
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(other Exercise) bool {
		return other.ID == e.ID || !other.Running() && !other.Ended.IsZero() && other.Ended.Before(e.Created)
	})
	return func(ref scenario.Ref) bool {
		return slices.ContainsFunc(all, func(other Exercise) bool { return other.has(ref) })
	}, nil
}

// spoils returns the reason why no result can pass any more, or "".
func (g *grading) spoils(ctx context.Context) (string, error) {
	if until := g.e.FaultUntil; !until.IsZero() && g.report.At.After(until) {
		return fmt.Sprintf("the lab's faults expired at %s, before grading: the result cannot be attributed to the candidate",
			until.Format(time.RFC3339)), nil
	}
	var gone []string
	for _, name := range g.e.Public.Access.Namespaces {
		namespace, err := g.lab.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
			gone = append(gone, name)
		case err != nil:
			return "", fmt.Errorf("get namespace %s: %w", name, err)
		}
	}
	if len(gone) > 0 {
		return "deleted: namespace " + strings.Join(gone, ", ") + ", including everything that had to be fixed", nil
	}
	return "", nil
}

// stable returns copies of the checks, modified to require that they hold for the given time.
func stable(checks []scenario.Check, how scenario.Duration) []scenario.Check {
	longer := slices.Clone(checks)
	for i := range longer {
		longer[i].Sustained = max(longer[i].Sustained, how)
	}
	return longer
}

// onePod is the timeout for a probe that must succeed immediately. Such a probe creates and inspects one pod.
const onePod = scenario.Duration(10 * time.Second)

// atOnce returns copies of the checks, modified to require that they hold immediately.
func atOnce(checks []scenario.Check) []scenario.Check {
	now := slices.Clone(checks)
	for i := range now {
		within := now[i].Within
		now[i].Within, now[i].Sustained = 0, 0
		if now[i].Probe != nil { // for a probe, zero means half a minute
			now[i].Within = onePod
			if within > 0 {
				now[i].Within = min(within, onePod)
			}
		}
	}
	return now
}

// whoami returns the trainer's user name, for display.
func (l *Lab) whoami(ctx context.Context) string {
	review, err := l.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	return review.Status.UserInfo.Username
}

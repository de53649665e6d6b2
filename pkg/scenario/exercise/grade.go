package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// listed is how many differences a report lists.
const listed = 30

// Grade judges what the candidate has done so far, and stores the report. It may be done again. The error is a
// *PhaseError before the exercise was handed over and after its end; that a candidate has failed is no error.
func (l *Lab) Grade(ctx context.Context, id string) (*Report, error) {
	return l.grade(ctx, id, full, nil)
}

// GradeRecorded is Grade with what a transcript of the candidate's requests tells. One that is not of this exercise is
// refused, and nothing is judged.
func (l *Lab) GradeRecorded(ctx context.Context, id string, transcript *recorder.Transcript) (*Report, error) {
	return l.grade(ctx, id, full, transcript)
}

// patience is how long grading waits for what is not yet so.
type patience int

const (
	full  patience = iota // as the checks say
	hasty                 // for what is meant to fail: once it is clear that it does, no longer
	none                  // not at all
)

// grade judges; without a transcript that is nil.
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
	g.report.judge(r.Sealed.Grade.Weights, g.spoiled)
	_, err = l.update(ctx, id, func(e *Exercise) error {
		if err := e.must("grade", e.Open()); err != nil {
			return err
		}
		e.Phase, e.Grades = Graded, append(e.Grades, g.report)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the exercise was graded (passed: %t, score %d), and that could not be stored: %w",
			g.report.Passed, g.report.Score, err)
	}
	return &g.report, nil
}

// grading is an exercise that is being judged.
type grading struct {
	lab     *Lab
	e       *Exercise
	r       *scenario.Resolved
	report  Report
	spoiled string // why there is nothing to judge: the namespace is gone
	// judged is when it was last seen whether it is mended; zero when that was not looked at yet.
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

// look sees what there is to be judged: first whether it is mended, and stays so, and then what else was done.
func (g *grading) look(ctx context.Context, waits patience) error {
	begin, err := g.lab.snapshot(ctx, g.e, snapBegin)
	switch {
	case err != nil:
		return fmt.Errorf("exercise %s cannot be graded: %w", g.e.ID, err)
	case begin == nil:
		return fmt.Errorf("exercise %s cannot be graded: the ledger has lost what the cluster was like when it began",
			g.e.ID)
	}
	if err := g.lab.verifySeals(ctx, g.e, sealExercise, sealScenario, snapBegin); err != nil {
		return err
	}
	if g.spoiled, err = g.spoils(ctx); err != nil {
		return err
	}
	if err := g.lab.sweep(ctx, g.e, staleProbe); err != nil {
		return err
	}
	if g.spoiled != "" { // nothing is worth waiting for
		waits = none
	}
	if g.e.Module != nil && g.spoiled == "" {
		if err := g.apply(ctx); err != nil {
			return err
		}
		if !g.report.Applied.OK() { // it has failed
			waits = none
		}
	}
	first := waits == hasty
	if first {
		if err := g.besides(ctx, begin); err != nil {
			return err
		}
		if !g.clean() {
			waits = none
		}
	}
	if err := g.awaitFix(ctx, begin, waits); err != nil || first {
		return err
	}
	return g.besides(ctx, begin)
}

// awaitFix sees whether it is mended and stays so, and all the while no workaround: one that is taken back as soon as
// the result was seen would else not be.
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

// unchanged adds what another look at one of them showed: what was not so once is not so.
func (g *grading) unchanged(i int, result check.Result) {
	if g.report.Unchanged[i].OK {
		g.report.Unchanged[i] = result
	}
}

// again looks at what was not looked at since it was seen whether it is mended: a workaround may have come meanwhile.
func (g *grading) again(ctx context.Context, begin *baseline.Baseline) error {
	var at []int
	var checks []scenario.Check
	for i, one := range g.r.Sealed.Grade.Unchanged {
		seen := g.report.Unchanged[i]
		// A look at a probe may be one at a pod that was made long before.
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

// reverted refuses an exercise that somebody undid by its run: what there is to be seen is nobody's doing.
func (g *grading) reverted(ctx context.Context) error {
	run, err := g.lab.Session.Ledger.Get(ctx, g.e.ID)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return &PhaseError{
			*g.e, "grade",
			"its run is not in the ledger any more; end it with: " +
				g.lab.Session.Ledger.Command("scenario", "end", g.e.ID),
		}
	}
	if err == nil && run.IsClosed() {
		return &PhaseError{
			*g.e, "grade",
			"its run was " + run.Message + "; end it with: " + g.lab.Session.Ledger.Command("scenario", "end", g.e.ID),
		}
	}
	return err
}

// clean reports whether the other gates than fixed hold.
func (g *grading) clean() bool {
	return g.report.unchangedGate().OK && g.report.collateralGate().OK
}

// besides sees whether it is a workaround, and what else in the cluster is not as it was when the candidate began.
func (g *grading) besides(ctx context.Context, begin *baseline.Baseline) error {
	if err := g.again(ctx, begin); err != nil {
		return err
	}
	now, err := g.lab.capture(ctx, g.e.whole())
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
	// What the candidate deleted and made anew lacks the label by which an undo knows our objects.
	marked := scenario.Allowed{Fields: []string{"metadata.labels[" + objects.LabelInstance + "]"}}
	allow := append(slices.Clone(g.r.Sealed.Grade.Collateral.Allow), marked)
	damage := baseline.Collateral(baseline.Diff(begin, now), allow, func(ref scenario.Ref) bool {
		return others(ref) || within(ref, g.e.Account.namespaces()) || !candidate.may(ref) ||
			g.e.probes(ref, now.Get(ref))
	})
	if len(damage) > listed {
		g.report.Omitted = len(damage) - listed
		damage = damage[:listed]
	}
	g.report.Collateral = damage
	return nil
}

// others returns which objects are other exercises', whose changes are nobody's damage: of all that ran at some time
// since this one began.
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

// spoils returns why nothing can be right any more; empty when something can.
func (g *grading) spoils(ctx context.Context) (string, error) {
	if until := g.e.FaultUntil; !until.IsZero() && g.report.At.After(until) {
		return fmt.Sprintf("the lab's faults ended by themselves at %s, before it was graded: what works now was not mended",
			until.Format(time.RFC3339)), nil
	}
	var gone []string
	for _, name := range g.e.Public.Access.Namespaces {
		namespace, err := g.lab.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
			gone = append(gone, name)
		case err != nil:
			return "", fmt.Errorf("look for namespace %s: %w", name, err)
		}
	}
	if len(gone) > 0 {
		return "deleted: namespace " + strings.Join(gone, ", ") + ", with everything that was to be mended", nil
	}
	return "", nil
}

// stable are checks that must hold for some time.
func stable(checks []scenario.Check, how scenario.Duration) []scenario.Check {
	longer := slices.Clone(checks)
	for i := range longer {
		longer[i].Sustained = max(longer[i].Sustained, how)
	}
	return longer
}

// onePod is how long a probe that must hold now may take: its pod is made and seen once.
const onePod = scenario.Duration(10 * time.Second)

// atOnce are checks that must hold now.
func atOnce(checks []scenario.Check) []scenario.Check {
	now := slices.Clone(checks)
	for i := range now {
		within := now[i].Within
		now[i].Within, now[i].Sustained = 0, 0
		if now[i].Probe != nil { // for which zero is half a minute
			now[i].Within = onePod
			if within > 0 {
				now[i].Within = min(within, onePod)
			}
		}
	}
	return now
}

// whoami returns who uses the lab, for people to read.
func (l *Lab) whoami(ctx context.Context) string {
	review, err := l.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	return review.Status.UserInfo.Username
}

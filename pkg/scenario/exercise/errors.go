package exercise

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// UnenforcedError means that the cluster does not enforce NetworkPolicies, which the scenario requires.
type UnenforcedError struct {
	Otherwise string // a scenario that does not require enforcement; may be empty
}

func (e *UnenforcedError) Error() string {
	text :=
		fmt.Sprintf("the cluster does not enforce NetworkPolicies, which the scenario requires (a deny-all policy had no effect within %s): "+
			"install a CNI plugin that enforces them (Calico, Cilium), or add sigs.k8s.io/kube-network-policies",
			policyTimeout)
	if e.Otherwise != "" {
		text += "; or use scenario " + e.Otherwise + ", which does not require them"
	}
	return text
}

// NotFoundError means that the exercise does not exist, or that no exercise is running.
type NotFoundError struct {
	ID, Namespace string
	list          string // command to list exercises
}

func (e *NotFoundError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("no running exercise in ledger namespace %q; to list exercises, run: %s", e.Namespace,
			e.list)
	}
	return fmt.Sprintf("exercise %q not found in ledger namespace %q; to list exercises, run: %s", e.ID, e.Namespace,
		e.list)
}

// AmbiguousError means that several exercises are running, so an ID must be specified.
type AmbiguousError struct{ Running []Exercise }

func (e *AmbiguousError) Error() string {
	names := make([]string, len(e.Running))
	for i, one := range e.Running {
		names[i] = one.ID + " (" + one.Scenario + of(one.By) + ")"
	}
	return "several exercises are running; specify one of: " + strings.Join(names, ", ")
}

// PhaseError means that an exercise is in the wrong phase for an operation.
type PhaseError struct {
	Exercise Exercise
	Want     string // the operation: grade
	Why      string
}

func (e *PhaseError) Error() string {
	return fmt.Sprintf("cannot %s exercise %s (%s), which is %s: %s", e.Want, e.Exercise.ID, e.Exercise.Scenario,
		e.Exercise.Phase, e.Why)
}

// BusyError means that another exercise uses a namespace that this exercise needs.
type BusyError struct {
	Exercise  Exercise
	Namespace string
	end       string // command to end the other exercise
}

func (e *BusyError) Error() string {
	text := fmt.Sprintf("exercise %s (%s%s) uses namespace %q", e.Exercise.ID, e.Exercise.Scenario, of(e.Exercise.By),
		e.Namespace)
	if !e.Exercise.Until.IsZero() {
		text += ", until " + e.Exercise.Until.Format(time.RFC3339)
	}
	return text + "; use another --seed for other names, or, to end that exercise, run: " + e.end
}

// ConsentError lists the parts of a scenario that may harm the cluster and require the trainer's consent.
type ConsentError struct {
	Scenario string
	Wants    []string
}

func (e *ConsentError) Error() string {
	return fmt.Sprintf("scenario %q can harm the cluster; --yes alone does not allow the following:\n  - %s",
		e.Scenario,
		strings.Join(e.Wants, "\n  - "))
}

// CheckError lists the checks that failed.
type CheckError struct {
	What    string // such as "the lab did not become healthy"
	Results []check.Result
}

func (e *CheckError) Error() string {
	var failed []string
	for _, r := range e.Results {
		switch {
		case r.OK:
		case r.Saw == "":
			failed = append(failed, said(r))
		default:
			failed = append(failed, said(r)+": saw "+r.Saw)
		}
	}
	return e.What + ": " + strings.Join(failed, "; ")
}

// said describes a failed check: NAME: MESSAGE.
func said(r check.Result) string {
	if r.Message == "" {
		return r.Name
	}
	return r.Name + ": " + r.Message
}

func of(by string) string {
	if by == "" {
		return ""
	}
	return " of " + by
}

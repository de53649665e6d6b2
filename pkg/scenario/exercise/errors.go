package exercise

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// UnenforcedError says that the cluster does not enforce NetworkPolicies, which the scenario needs.
type UnenforcedError struct {
	Otherwise string // the scenario that needs none; may be empty
}

func (e *UnenforcedError) Error() string {
	text :=
		fmt.Sprintf("the scenario needs NetworkPolicies that are enforced, and one that forbids a pod everything had no effect within %s: "+
			"install a CNI that enforces them (Calico, Cilium), or sigs.k8s.io/kube-network-policies beside yours",
			policyTimeout)
	if e.Otherwise != "" {
		text += "; or play " + e.Otherwise + ", which needs none"
	}
	return text
}

// NotFoundError says that there is no such exercise, or none that runs.
type NotFoundError struct {
	ID, Namespace string
	list          string // the command that lists them
}

func (e *NotFoundError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("no exercise runs (ledger namespace %s); see: %s", e.Namespace, e.list)
	}
	return fmt.Sprintf("the ledger (namespace %s) has no exercise %s; see: %s", e.Namespace, e.ID, e.list)
}

// AmbiguousError says that an exercise must be named, because several run.
type AmbiguousError struct{ Running []Exercise }

func (e *AmbiguousError) Error() string {
	names := make([]string, len(e.Running))
	for i, one := range e.Running {
		names[i] = one.ID + " (" + one.Scenario + of(one.By) + ")"
	}
	return "several exercises run, name one: " + strings.Join(names, ", ")
}

// PhaseError says that an exercise is not so far, or farther.
type PhaseError struct {
	Exercise Exercise
	Want     string // what was wanted: grade
	Why      string
}

func (e *PhaseError) Error() string {
	return fmt.Sprintf("cannot %s exercise %s (%s), which is %s: %s", e.Want, e.Exercise.ID, e.Exercise.Scenario,
		e.Exercise.Phase, e.Why)
}

// BusyError says that an exercise has the namespaces that another one wants.
type BusyError struct {
	Exercise  Exercise
	Namespace string
	end       string // the command that ends it
}

func (e *BusyError) Error() string {
	text := fmt.Sprintf("exercise %s (%s%s) has namespace %s", e.Exercise.ID, e.Exercise.Scenario, of(e.Exercise.By),
		e.Namespace)
	if !e.Exercise.Until.IsZero() {
		text += ", until " + e.Exercise.Until.Format(time.RFC3339)
	}
	return text + "; end it with: " + e.end + ", or take other names with another --seed"
}

// ConsentError says what a scenario asks for that may harm the cluster, and that nobody has agreed to it.
type ConsentError struct {
	Scenario string
	Wants    []string
}

func (e *ConsentError) Error() string {
	return fmt.Sprintf("scenario %s wants what can harm the cluster, and must be allowed by name, not by --yes alone:\n  - %s",
		e.Scenario,
		strings.Join(e.Wants, "\n  - "))
}

// CheckError says which checks do not hold that should.
type CheckError struct {
	What    string // "the lab did not become healthy"
	Results []check.Result
}

func (e *CheckError) Error() string {
	var failed []string
	for _, r := range e.Results {
		if !r.OK {
			failed = append(failed, said(r))
		}
	}
	return e.What + ": " + strings.Join(failed, "; ")
}

// said returns what a check that does not hold says: NAME: MESSAGE: saw EVIDENCE.
func said(r check.Result) string {
	text := r.Name
	if r.Message != "" {
		text += ": " + r.Message
	}
	if r.Saw != "" {
		text += ": saw " + r.Saw
	}
	return text
}

func of(by string) string {
	if by == "" {
		return ""
	}
	return " of " + by
}

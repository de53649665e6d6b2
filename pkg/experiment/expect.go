package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Expectation is a reaction or state that is expected, or not allowed, after a fault. At most one of Reaction, Node,
// Check, Steady and Load is set. If none is set, Name is the name of a reaction.
type Expectation struct {
	Name string `json:"name"`
	// Within is the deadline for what is expected, and For is the time during which the reaction or state is not
	// allowed. Both start at the verification of the fault.
	Within scenario.Duration `json:"within,omitempty"`
	For    scenario.Duration `json:"for,omitempty"`

	// Reaction is the expected reaction for each target; see reaction.Kinds.
	Reaction string `json:"reaction,omitempty"`
	// By is the required actor: a system such as NVSentinel, a field manager (the name may end with *), or any. By
	// default, actions of a person or of this tool are not reactions.
	By string `json:"by,omitempty"`
	// Pod limits a reaction to pods with this name, in the form NAMESPACE/NAME. NAME may end with *.
	Pod string `json:"pod,omitempty"`
	// Node is a part of a node that each target must contain. Alternatively, it contains only the key cel, whose value
	// is an expression over a node in the cluster (node) and the first target (target.node). The expression must be
	// true for at least one node in the cluster.
	Node map[string]any `json:"node,omitempty"`
	// Check is a check in the same format as in scenarios. Steady is the name of a check in the steady state.
	Check  *scenario.Check `json:"check,omitempty"`
	Steady string          `json:"steady,omitempty"`
	// Load is the name of a load. Expect is an expression over the load's requests in the last Window, with the
	// variables requests, ok (the share of successful requests), p50, p95 and p99 (in seconds).
	Load   string            `json:"load,omitempty"`
	Expect string            `json:"expect,omitempty"`
	Window scenario.Duration `json:"window,omitempty"`
}

// celKey is the key of an expression in Expectation.Node.
const celKey = "cel"

// Verdict is the result of an expectation.
type Verdict struct {
	Name string `json:"name"`
	Not  bool   `json:"not,omitempty"` // the reaction or state is not allowed
	OK   bool   `json:"ok"`
	// State is ok, late, missing, happened, or unknown if it could not be observed.
	State State `json:"state"`
	// Limit is Within or For. After is the time from the verification of the fault until the reaction or state was
	// observed. Both are in seconds.
	Limit float64 `json:"limit"`
	After float64 `json:"after,omitempty"`
	// Proof is the time of the verification. Limit and After count from this time.
	Proof time.Time `json:"proof,omitzero"`
	// By is the actor. Text is the observation that met the expectation, or the observation made instead.
	By   string `json:"by,omitempty"`
	Text string `json:"text,omitempty"`
	// Round is the round of a repeated experiment, counted from 1, or 0 if the experiment is not repeated. From the
	// second round on, names end with the round.
	Round int `json:"round,omitempty"`
}

// State is the outcome of an expectation.
type State string

// The states of verdicts.
const (
	StateOK       State = "ok"
	StateLate     State = "late"
	StateMissing  State = "missing"
	StateHappened State = "happened"
	StateUnknown  State = "unknown"
)

// pending is an expectation that is being observed.
type pending struct {
	Expectation
	not    bool
	proof  time.Time // when the fault was verified, which is the start of Within or For
	name   reaction.Name
	test   *expr.Program
	met    time.Time            // when the expectation was met; zero if it has not been met
	on     map[string]time.Time // when the reaction or state was observed on each target
	by     string
	text   string
	moved  bool     // pods must leave the node, so a restarted container does not count as serving again
	closed bool     // later events do not count
	others []string // the same reaction by actors that do not count
	err    error    // the reason why the observation failed
}

// newPending checks and prepares an expectation.
func newPending(e Expectation, not bool) (*pending, error) {
	p := &pending{Expectation: e, not: not, on: map[string]time.Time{}}
	limit, other, word, wrong := e.Within, e.For, "within", "for"
	if not {
		limit, other, word, wrong = e.For, e.Within, "for", "within"
	}
	sources := 0
	for _, is := range []bool{
		e.Reaction != "", e.Node != nil, e.Check != nil, e.Steady != "", e.Load != "",
	} {
		if is {
			sources++
		}
	}
	switch {
	case e.Name == "":
		return nil, errors.New("an expectation must have a name")
	case limit <= 0:
		return nil, fmt.Errorf("%s: %s is missing: an expectation must have a deadline", e.Name, word)
	case other != 0:
		return nil, fmt.Errorf("%s: %s is not supported here: use %s", e.Name, wrong, word)
	case sources > 1:
		return nil, fmt.Errorf("%s: only one of reaction, node, check, steady and load is allowed", e.Name)
	case e.By != "" && (sources == 1 && e.Reaction == ""):
		return nil, fmt.Errorf("%s: by requires a reaction", e.Name)
	case e.Pod != "" && (sources == 1 && e.Reaction == ""):
		return nil, fmt.Errorf("%s: pod requires a reaction", e.Name)
	case e.Pod != "" && !strings.Contains(e.Pod, "/"):
		return nil, fmt.Errorf("%s: pod must be NAMESPACE/NAME (NAME may end with *), not %q", e.Name, e.Pod)
	}
	if sources == 0 {
		p.Reaction = e.Name
	}
	var err error
	if sources == 0 || p.Reaction != "" {
		if p.name, err = reaction.Parse(p.Reaction); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	if p.test, err = compileLoad(e); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	if text, is := e.Node[celKey]; is {
		source, isText := text.(string)
		if !isText || len(e.Node) > 1 {
			return nil, fmt.Errorf("%s: node.cel must be an expression, and the only key in node", e.Name)
		}
		if p.test, err = expr.Compile(source, "node", "target"); err != nil {
			return nil, fmt.Errorf("%s: node.cel: %w", e.Name, err)
		}
	}
	return p, nil
}

// moves reports whether pods leave the node if the expectation is met.
func (p *pending) moves() bool {
	return !p.not && slices.Contains(
		[]reaction.Name{reaction.Drained, reaction.Evicted, reaction.PodGone, reaction.Rescheduled}, p.name)
}

func (p *pending) limit() time.Duration { return max(p.Within, p.For).Std() }

func (p *pending) deadline() time.Time { return p.proof.Add(p.limit()) }

// react processes a reaction. The reaction counts if it happened to a target.
func (p *pending) react(r reaction.Reaction, targets []string) {
	elsewhere := r.Node != "" && !slices.Contains(targets, r.Node)
	if p.closed || p.name == "" || r.Name != p.name || !p.met.IsZero() || elsewhere {
		return
	}
	if p.Pod != "" && !reaction.Matches(p.Pod, r.Pod) {
		return
	}
	if !r.DoneBy(p.By) {
		p.others = append(p.others, fmt.Sprintf("%s by %s %s", r.Name, r.Actor(), after(r.Time.Sub(p.proof))))
		return
	}
	if p.moved && r.Restarted {
		p.others = append(p.others,
			fmt.Sprintf("%s by the restarted pod %s %s", r.Name, r.Pod, after(r.Time.Sub(p.proof))))
		return
	}
	p.happened(r.Node, targets, r.Time, r.Actor(), describe(r))
}

// happened records a reaction on a node. An expectation is met when the reaction has happened on all targets. A
// reaction that must not happen counts on any node.
func (p *pending) happened(node string, targets []string, at time.Time, by, text string) {
	if _, known := p.on[node]; known {
		return
	}
	p.on[node] = at
	p.by, p.text = by, text
	all := true
	for _, t := range targets {
		if _, is := p.on[t]; !is {
			all = false
		}
	}
	if _, everywhere := p.on[""]; all || everywhere || p.not {
		p.met = at
	}
}

func describe(r reaction.Reaction) string {
	where := r.Node
	if r.Pod != "" {
		where = r.Pod
	}
	switch {
	case where == "":
		return r.Text
	case r.Text == "":
		return "on " + where
	}
	return where + ": " + r.Text
}

// look processes the state of a node.
func (p *pending) look(ctx context.Context, node *corev1.Node, targets []string, at time.Time) {
	if p.closed || p.Node == nil || !p.met.IsZero() || p.err != nil {
		return
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		p.err = err
		return
	}
	isTarget := slices.Contains(targets, node.Name)
	switch {
	case p.test != nil:
		object["name"] = node.Name
		for _, part := range []string{"metadata", "spec", "status"} {
			if object[part] == nil {
				object[part] = map[string]any{}
			}
		}
		is, err := p.test.Bool(ctx, expr.Vars{"node": object, "target": map[string]any{"node": first(targets)}})
		if missing := err != nil; missing {
			return // the node lacks a field, such as spec.unschedulable
		}
		if is {
			p.by, p.text, p.met = "", "true for node "+node.Name, at
		}
	case isTarget && contains(object, p.Node):
		p.happened(node.Name, targets, at, "", "node "+node.Name)
	}
}

func first(targets []string) string {
	if len(targets) == 0 {
		return ""
	}
	return targets[0]
}

// contains reports whether a value contains a part. If the part is a list, the value must also be a list, and must
// contain each item of the part.
func contains(value, part any) bool {
	switch part := part.(type) {
	case map[string]any:
		have, is := value.(map[string]any)
		if !is {
			return false
		}
		for key, want := range part {
			got, found := have[key]
			if !found && want != nil && want != false || found && !contains(got, want) {
				return false
			}
		}
		return true
	case []any:
		have, is := value.([]any)
		if !is {
			return false
		}
		for _, want := range part {
			if !slices.ContainsFunc(have, func(got any) bool { return contains(got, want) }) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(value) == fmt.Sprint(part)
}

// verdict returns the current verdict.
func (p *pending) verdict() Verdict {
	v := Verdict{Name: p.Name, Not: p.not, Limit: p.limit().Seconds(), Proof: p.proof, By: p.by, Text: p.text}
	if !p.met.IsZero() {
		v.After = p.met.Sub(p.proof).Seconds()
	}
	inTime := !p.met.IsZero() && !p.met.After(p.deadline())
	switch {
	case p.err != nil:
		v.State, v.Text = StateUnknown, p.err.Error()
	case p.Load != "" && p.text == "" && !inTime:
		v.State, v.Text = StateUnknown, "the window contains no requests"
	case p.not && inTime:
		v.State = StateHappened
	case p.not:
		v.OK, v.State, v.By, v.Text, v.After = true, StateOK, "", "", 0
	case inTime:
		v.OK, v.State = true, StateOK
	case !p.met.IsZero():
		v.State = StateLate
	default:
		v.State, v.By = StateMissing, ""
		v.Text = p.instead()
	}
	return v
}

// instead returns the observation for an expectation that was not met.
func (p *pending) instead() string {
	switch {
	case len(p.others) > 0:
		return p.others[0] + ", which does not count"
	case len(p.on) > 0:
		return "only on " + count.Of(len(p.on), "target")
	}
	return p.text
}

// after describes a time since the verification of the fault.
func after(d time.Duration) string {
	if d < 0 {
		return "with the fault"
	}
	return fmt.Sprintf("after %.1f s", d.Seconds())
}

var errInterrupted = errors.New("not observed before the deadline")

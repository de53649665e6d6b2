package experiment

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// Entry is a line on the timeline: an action of the tool, or an event in the cluster.
type Entry struct {
	Time time.Time `json:"time"`
	// Began is the start of an action of this tool that completed at Time.
	Began time.Time `json:"began,omitzero"`
	// Since is the time since the verification of the preceding fault, in seconds, or 0 before the first fault.
	Since float64 `json:"since"`
	// What is the name of a reaction, or one of the What constants.
	What string `json:"what"`
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"`
	By   string `json:"by,omitempty"`
	Who  string `json:"who,omitempty"`
	Text string `json:"text,omitempty"`

	uid       types.UID // of the pod
	restarted bool      // see reaction.Reaction
	// Early is set in an entry passed to Show between the injection and the verification, when Since is not known yet.
	Early bool `json:"-"`
}

// reaction returns the reaction that an entry was created from.
func (e Entry) reaction() reaction.Reaction {
	return reaction.Reaction{
		Time: e.Time, Name: reaction.Name(e.What), Node: e.Node, Pod: e.Pod, By: e.By, Who: e.Who, Text: e.Text,
		UID: e.uid, Restarted: e.restarted,
	}
}

// Actor returns who caused the entry, for display.
func (e Entry) Actor() string { return e.reaction().Actor() }

// The actions of this tool on the timeline.
const (
	WhatInject = "inject"
	WhatProven = "proven"
	WhatRevert = "revert"
	// WhatSimulated is an action that the simulated remediation could not complete.
	WhatSimulated = "simulation"
)

// maxEntries limits the timeline, because a burst of lines, or pods that crash repeatedly, must not exhaust memory.
const maxEntries = 10_000

// Observer collects events, and compares them with expectations. Its methods are safe for concurrent use.
type Observer struct {
	Targets []string
	// Show, if set, is called with each new entry. Calls do not overlap.
	Show func(Entry)

	mu      sync.Mutex
	entries []Entry
	omitted int
	nodes   map[string]*corev1.Node
	victims map[string]int
	begun   bool      // a fault has been injected
	ongoing int       // number of unfinished injections
	faults  int       // number of faults that were verified in all their layers
	since   int       // index of the first entry that may be a reaction to the last fault
	proof   time.Time // when the last fault was verified
	rollout bool      // the last fault has replaced pods
	// replaced contains the pods that this tool has replaced. Their termination is not a reaction, even after the
	// verification.
	replaced map[types.UID]bool
	pending  []*pending
	changed  chan struct{} // closed and replaced at each change
}

// NewObserver returns an observer for faults on nodes.
func NewObserver(targets []string) *Observer {
	return &Observer{
		Targets: targets, nodes: map[string]*corev1.Node{}, replaced: map[types.UID]bool{},
		changed: make(chan struct{}),
	}
}

// Baseline sets the targets, and the state before the fault.
func (o *Observer) Baseline(targets []string, b reaction.Baseline) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Targets = targets
	o.victims = b.Victims
}

// News processes a change in the cluster. It is a callback for reaction.Options.
func (o *Observer) News(n reaction.News) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range n.Reactions {
		o.add(Entry{
			Time: r.Time, What: string(r.Name), Node: r.Node, Pod: r.Pod, By: r.By, Who: r.Who, Text: r.Text,
			uid: r.UID, restarted: r.Restarted,
		})
		if o.replaced[r.UID] {
			continue
		}
		for _, p := range o.pending {
			p.react(r, o.Targets)
		}
	}
	if n.Node != nil {
		o.nodes[n.Node.Name] = n.Node
		for _, p := range o.pending {
			p.look(context.Background(), n.Node, o.Targets, time.Now())
		}
	}
	o.signal()
}

// add appends an entry. The caller holds mu.
func (o *Observer) add(e Entry) {
	e.Time = cmp.Or(e.Time, time.Now())
	if !o.proof.IsZero() {
		e.Since = e.Time.Sub(o.proof).Seconds()
	}
	if len(o.entries) == maxEntries {
		o.omitted++
		return
	}
	o.entries = append(o.entries, e)
	e.Early = o.proof.IsZero()
	if o.Show != nil {
		o.Show(e)
	}
}

func (o *Observer) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// Did records an action of this tool.
func (o *Observer) Did(what, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(Entry{What: what, Text: text})
}

// targets returns the nodes with the fault.
func (o *Observer) targets() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Targets
}

// inject begins an injection, and the returned function ends it. Concurrent injections count as one fault, so anything
// that happens after the first one begins is a reaction.
func (o *Observer) inject() (done func()) {
	o.mu.Lock()
	first := o.ongoing == 0
	o.ongoing++
	o.mu.Unlock()
	if first {
		o.Begin()
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ongoing--
	}
}

// Reverted records that this tool has reverted a run.
func (o *Observer) Reverted(began time.Time, run string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(Entry{Began: began, What: WhatRevert, Text: run})
}

// Begin discards earlier events: only later ones are reactions to the next fault.
func (o *Observer) Begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since, o.proof, o.rollout, o.begun = len(o.entries), time.Time{}, false, true
}

// injected records that a fault has been verified in all its layers.
func (o *Observer) injected() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults++
	o.signal()
}

// ofRollouts are the reactions that a rollout can be mistaken for.
var ofRollouts = []reaction.Name{
	reaction.Evicted, reaction.PodGone, reaction.Rescheduled, reaction.Served, reaction.Drained,
}

// Close ends the observation for all expectations so far, because the effects of a revert are not reactions to the
// fault.
func (o *Observer) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.pending {
		p.closed = true
	}
}

// RolledOut records that the fault replaced pods before its verification. Their replacement is not a reaction, but the
// failure of a container is.
func (o *Observer) RolledOut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rollout = true
	o.replace()
}

// RevertDone records that this tool has reverted all faults. The reverts may also have replaced pods. Unlike the pods
// that are created after a fault, these new pods count as reactions, because they may be ready before the revert ends.
func (o *Observer) RevertDone() {
	o.mu.Lock()
	o.replace()
	o.mu.Unlock()
	o.Proven(time.Now(), "all faults are reverted")
}

// replace records the pods that have been told to terminate since this tool's action began, because the action replaced
// these pods. The caller holds mu.
func (o *Observer) replace() {
	for _, e := range o.entries[o.since:] {
		if reaction.Name(e.What) == reaction.Evicted {
			o.replaced[e.uid] = true
		}
	}
}

// Proven records that a fault was verified at the given time. All deadlines start at that time.
func (o *Observer) Proven(at time.Time, text string) { o.ProvenSince(time.Time{}, at, text) }

// ProvenSince is like Proven, and also records when this tool began to inject the fault.
func (o *Observer) ProvenSince(began, at time.Time, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.proof = at // when the last layer was verified
	for i := o.since; i < len(o.entries); i++ {
		o.entries[i].Since = o.entries[i].Time.Sub(at).Seconds()
	}
	o.add(Entry{Time: at, Began: began, What: WhatProven, Text: text})
}

// expect begins to observe expectations. Reactions since the beginning of the fault count.
func (o *Observer) expect(all []*pending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = append(o.pending, all...)
	moved := slices.ContainsFunc(o.pending, (*pending).moves)
	for _, p := range all {
		if p.proof = o.proof; p.proof.IsZero() {
			p.proof = time.Now()
		}
		p.moved = moved && !p.not
		for _, e := range o.entries[o.since:] {
			if o.replaced[e.uid] {
				continue
			}
			if o.rollout && e.Time.Before(p.proof) && slices.Contains(ofRollouts, reaction.Name(e.What)) {
				continue
			}
			p.react(e.reaction(), o.Targets)
		}
		for _, n := range o.nodes {
			p.look(context.Background(), n, o.Targets, time.Now())
		}
	}
}

// await waits until all expected reactions have happened or their deadlines have expired, and until the time during
// which other reactions must not happen has passed. It returns the verdicts for these expectations. The observation of
// the expectations must already have begun.
func (o *Observer) await(ctx context.Context, all []*pending) []Verdict {
	for {
		o.mu.Lock()
		changed := o.changed
		var next time.Time
		for _, p := range all {
			done := p.err != nil || !p.met.IsZero() || !time.Now().Before(p.deadline())
			if d := p.deadline(); !done && (next.IsZero() || d.Before(next)) {
				next = d
			}
		}
		if next.IsZero() || ctx.Err() != nil {
			for _, p := range all {
				if ctx.Err() != nil && p.met.IsZero() && time.Now().Before(p.deadline()) {
					p.err = cmp.Or(p.err, errInterrupted)
				}
			}
			verdicts := o.verdicts(all)
			o.mu.Unlock()
			return verdicts
		}
		o.mu.Unlock()
		timer := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (o *Observer) verdicts(all []*pending) []Verdict {
	verdicts := make([]Verdict, len(all))
	for i, p := range all {
		v := p.verdict()
		if v.State == StateMissing && v.Text == "" && p.name == reaction.Drained && o.noVictims() {
			v.Text = "the node had no pod that could be evicted"
		}
		verdicts[i] = v
	}
	return verdicts
}

func (o *Observer) noVictims() bool {
	return o.victims != nil && !slices.ContainsFunc(o.Targets, func(name string) bool { return o.victims[name] > 0 })
}

// Verdicts returns all current verdicts. Reactions after the deadline count as late.
func (o *Observer) Verdicts() []Verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.verdicts(o.pending)
}

// Entries returns the timeline.
func (o *Observer) Entries() []Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.entries)
}

// Expect waits for reactions that should happen and for reactions that must not; see Observer.await.
func (o *Observer) Expect(ctx context.Context, expect, not []Expectation) ([]Verdict, error) {
	all, err := prepare(expect, not)
	if err != nil {
		return nil, err
	}
	o.expect(all)
	return o.await(ctx, all), nil
}

func prepare(expect, not []Expectation) ([]*pending, error) {
	var all []*pending
	for i, list := range [][]Expectation{expect, not} {
		for _, e := range list {
			p, err := newPending(e, i == 1)
			if err != nil {
				return nil, err
			}
			all = append(all, p)
		}
	}
	return all, nil
}

package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// The steps of a simulated remediation, in order.
const (
	SimulateDetect   = "detect"   // start when a detector reports the node, instead of at the verification of the fault
	SimulateCordon   = "cordon"   // make the node unschedulable
	SimulateDrain    = "drain"    // evict the node's pods
	SimulateUncordon = "uncordon" // make the node schedulable again
)

var simulation = []string{SimulateDetect, SimulateCordon, SimulateDrain, SimulateUncordon}

// Remediator performs the actions of a remediator on a node.
type Remediator interface {
	// Cordon makes a node unschedulable, and returns the ID of the run that did so, for Lab.Revert. On failure, the ID
	// is that of a run that may have left changes in place, or "" if there is none.
	Cordon(ctx context.Context, node string) (run string, err error)
	// Drain evicts the pods on a node and waits until they no longer exist. It returns the pods that it must not evict.
	Drain(ctx context.Context, node string) (stay []string, err error)
}

// validSimulation returns an error unless the steps are known, in order, and include the steps that others depend on.
func validSimulation(steps []string) error {
	last := -1
	for _, s := range steps {
		at := slices.Index(simulation, s)
		switch {
		case at < 0:
			return fmt.Errorf("unknown step %q: must be one of %s", s, strings.Join(simulation, ", "))
		case at <= last:
			return fmt.Errorf("%s must be in the order %s, without repetition", strings.Join(steps, ", "),
				strings.Join(simulation, ", "))
		}
		last = at
	}
	if len(steps) > 0 && !slices.Contains(steps, SimulateCordon) {
		return errors.New("the simulated remediation requires the cordon step")
	}
	return nil
}

// simulator acts as the remediator for one node until its context ends.
type simulator struct {
	*play
	node  string
	steps []string
	run   string // the run of the cordon; empty if the node is not cordoned
}

// simulate starts a simulator for each target. The returned function stops them; uncordonAll reverts the remaining
// cordons.
func (p *play) simulate(ctx context.Context) (stop func()) {
	if len(p.SimulateRemediation) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	from := p.observer.now()
	for _, node := range p.targets {
		s := &simulator{play: p, node: node, steps: p.SimulateRemediation}
		p.simulators = append(p.simulators, s)
		working.Go(func() { s.work(ctx, from) })
	}
	return func() { cancel(); working.Wait() }
}

// uncordonAll uncordons the nodes that the simulated remediation has left cordoned. Nodes that cannot be uncordoned are
// in the result.
func (p *play) uncordonAll(ctx context.Context) {
	for _, s := range p.simulators {
		_ = s.uncordon(ctx)
	}
}

func (s *simulator) does(step string) bool { return slices.Contains(s.steps, step) }

// work remediates the node once for each fault, or only once if the node stays cordoned.
func (s *simulator) work(ctx context.Context, seen moment) {
	for {
		if !s.observer.awaitFault(ctx, seen, s.detects()) {
			return
		}
		began := s.observer.now()
		if err := s.remediate(ctx); err != nil {
			if ctx.Err() == nil {
				s.Say("Warning: the simulated remediation of node %s stopped: %v", s.node, err)
				s.observer.Did(WhatSimulated, fmt.Sprintf("stopped on node %s: %v", s.node, err))
			}
			return
		}
		if s.run != "" {
			return
		}
		// Detectors report a fault several times, so entries up to now no longer count. Another fault may have been
		// verified in the meantime, so faults since the beginning of the remediation do count.
		seen = moment{s.observer.now().entries, began.faults}
	}
}

// detects returns a predicate for the entries that start the remediation, or nil if the verification of a fault starts
// it.
func (s *simulator) detects() func(Entry) bool {
	if !s.does(SimulateDetect) {
		return nil
	}
	return func(e Entry) bool {
		r := e.reaction()
		return r.Name == reaction.Detected && r.Node == s.node && r.DoneBy("")
	}
}

func (s *simulator) remediate(ctx context.Context) error {
	run, err := s.Remediator.Cordon(ctx, s.node)
	s.run = run
	if run != "" {
		s.mu.Lock()
		s.cordons = append(s.cordons, run)
		s.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("cordon: %w", err)
	}
	if s.does(SimulateDrain) {
		stay, err := s.Remediator.Drain(ctx, s.node)
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if len(stay) > 0 {
			s.observer.Did(WhatSimulated, fmt.Sprintf("%s without a controller, which would not be recreated, "+
				"remain on node %s: %s", count.Of(len(stay), "pod"), s.node, strings.Join(stay, ", ")))
		}
	}
	if s.does(SimulateUncordon) {
		return s.uncordon(ctx)
	}
	return nil
}

// uncordon reverts the cordon, if it still exists, even if the experiment ends in the meantime.
func (s *simulator) uncordon(ctx context.Context) error {
	if s.run == "" {
		return nil
	}
	run := s.run
	s.run = ""
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), revertTimeout, errors.New("timeout"))
	defer cancel()
	if err := s.Revert(ctx, run); err != nil {
		s.mu.Lock()
		s.left = append(s.left, fmt.Sprintf("run %s: %v", run, err))
		s.mu.Unlock()
		return fmt.Errorf("uncordon: %w", err)
	}
	return nil
}

// moment is a position on the timeline.
type moment struct {
	entries int // number of entries on the timeline so far
	faults  int // number of faults that were verified in all their layers so far
}

func (o *Observer) now() moment {
	o.mu.Lock()
	defer o.mu.Unlock()
	return moment{len(o.entries), o.faults}
}

// awaitFault waits until a fault is verified or, if detects is set, until an entry shows that a fault was detected.
// Entries before the moment, or before the first fault, do not count.
func (o *Observer) awaitFault(ctx context.Context, from moment, detects func(Entry) bool) bool {
	for {
		o.mu.Lock()
		changed := o.changed
		found := detects == nil && o.faults > from.faults
		if detects != nil && o.begun {
			found = slices.ContainsFunc(o.entries[max(from.entries, o.since):], detects)
		}
		o.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Simulated is the name of the system that is displayed for the actions of a simulated remediation.
const Simulated = "simulated remediation"

// credit attributes this tool's cordons on the targets to the simulated remediator.
func (p *play) credit(all []reaction.Reaction) []reaction.Reaction {
	if len(p.SimulateRemediation) == 0 {
		return all
	}
	credited, targets := slices.Clone(all), p.observer.targets()
	for i, r := range credited {
		if cordon.IsManager(r.By) && slices.Contains(targets, r.Node) {
			credited[i].Who = Simulated
		}
	}
	return credited
}

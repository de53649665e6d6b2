//go:build e2e && scenario

package exercise

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// onGPUs returns the scenario of testdata with a GPU for each of its pods.
func onGPUs(t *testing.T) []string {
	return append(own(t), "requires: {nodes: 1}", "requires: {nodes: 1, gpus: 2}",
		`envFrom: [{configMapRef: {name: "${p.key}-v2"}}]`, `envFrom: [{configMapRef: {name: "${p.key}-v2"}}]
                    resources: {limits: {nvidia.com/gpu: 1}}`)
}

// offered returns what nodes are, as scenarios and schedulers see them: labels, capacity, allocatable.
func (s *site) offered() map[string]any {
	s.Helper()
	nodes, err := s.lab("looker").Client.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	all := map[string]any{}
	for _, node := range nodes.Items {
		all[node.Name] = []any{node.Labels, node.Status.Capacity, node.Status.Allocatable}
	}
	return all
}

// simulating returns a lab that simulates GPUs, on a cluster without. On one that has GPUs it holds that they are not,
// and there is nothing more to see: the package's tests run there, too.
func (s *site) simulating(parsed *scenario.Scenario) (*Lab, bool) {
	s.Helper()
	lab := s.lab("laptop")
	lab.SimulateGPUs = 4 // a rolling update has one pod more than two
	facts, err := scenario.GatherFacts(s.Context(), lab.Client)
	if err != nil {
		s.Fatal(err)
	}
	if facts.GPUNodes == 0 {
		return lab, true
	}
	_, err = lab.Resolve(s.Context(), parsed, 1, nil)
	wants(s.T, err, "GPUs", "omit --simulate-gpus")
	return nil, false
}

// With simulated GPUs each solution passes and each wrong fix fails, nothing of the lab's own is the candidate's
// damage, and afterwards nodes offer what they did.
func TestE2ESimulatedGPUs(t *testing.T) { // not parallel: it compares all nodes
	s := newSite(t)
	parsed := s.parsed(onGPUs(t)...)
	lab, can := s.simulating(parsed)
	if !can {
		return
	}
	before := s.offered()
	rows := 0
	err := lab.SelftestAll(t.Context(), []*scenario.Scenario{parsed}, []int64{1}, 3, func(row Row) {
		rows++
		t.Logf("%-28s wanted %s got %s broken %s %s", row.Attempt, row.Wanted, row.Got,
			row.Broken.Round(100*time.Millisecond), row.Why)
	})
	if err != nil || rows != 6 {
		t.Errorf("%d rows, %v", rows, err)
	}
	if diff := cmp.Diff(before, s.offered()); diff != "" {
		t.Error(diff)
	}
}

// Whenever the trainer stops a start, or another one ends it, the GPUs go; and while an exercise has them no other gets
// any.
func TestE2ESimulatedGPUsGo(t *testing.T) {
	s := newSite(t)
	parsed := s.parsed(onGPUs(t)...)
	if _, can := s.simulating(parsed); !can {
		return
	}
	before := s.offered()
	for _, moment := range []string{"label node", "advertise", "the team's namespace", "give the candidate access"} {
		for _, ended := range []bool{false, true} {
			lab, _ := s.simulating(parsed)
			r, err := lab.Resolve(t.Context(), parsed, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			seen := false
			lab.Session.Observer.StepChanged = func(run ledger.Run, step ledger.Step) {
				if seen || step.State != ledger.StateProven || len(step.Action) < len(moment) ||
					step.Action[:len(moment)] != moment {
					return
				}
				seen = true
				if !ended {
					cancel()
				} else if _, err := s.lab("desktop").End(t.Context(), run.ID, EndOptions{Force: true}); err != nil {
					t.Error(err)
				}
			}
			_, err = lab.Start(ctx, r, StartOptions{})
			cancel()
			if err == nil || !seen || !ended && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", moment, err)
			}
			if diff := cmp.Diff(before, s.offered()); diff != "" {
				t.Errorf("%s, ended %t: %s", moment, ended, diff)
			}
		}
	}
}

// The candidate reads that the GPUs are simulated, another exercise is told whose they are, and the end leaves nothing.
func TestE2ESimulatedGPUsAreTold(t *testing.T) {
	s := newSite(t)
	parsed := s.parsed(onGPUs(t)...)
	lab, can := s.simulating(parsed)
	if !can {
		return
	}
	before := s.offered()
	r, err := lab.Resolve(t.Context(), parsed, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := lab.Start(t.Context(), r, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if card := lab.Card(e); card.Simulated != scenario.SimulatedNote {
		t.Errorf("%q", card.Simulated)
	}
	_, err = lab.Resolve(t.Context(), parsed, 2, nil)
	wants(t, err, "already has simulated GPUs", "scenario status")
	report, err := lab.Grade(t.Context(), "")
	if err != nil || report.Passed || len(report.Collateral) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	ending, err := s.lab("desktop").End(t.Context(), "", EndOptions{})
	if err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
	if diff := cmp.Diff(before, s.offered()); diff != "" {
		t.Error(diff)
	}
}

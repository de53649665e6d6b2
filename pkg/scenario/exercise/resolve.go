package exercise

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// mostNodes is the number of nodes on which GPUs are simulated, unless the scenario requires more.
const mostNodes = 2

// Resolve resolves a scenario for a seed and the current cluster, including the GPUs that the lab will
// advertise.
func (l *Lab) Resolve(
	ctx context.Context, s *scenario.Scenario, seed int64, given map[string]string,
) (*scenario.Resolved, error) {
	if l.Workload != "" {
		if err := s.OnWorkload(); err != nil {
			return nil, err
		}
	}
	facts, err := l.facts(ctx, s)
	if err == nil && l.Workload != "" {
		facts.Workload, err = l.workload(ctx)
	}
	if err != nil {
		return nil, err
	}
	r, err := s.Resolve(seed, given, facts)
	if err != nil { // expressions that index missing nodes fail, but a message about unmet requirements is more helpful
		return nil, cmp.Or(enoughGPUs(s.Requires, facts), err)
	}
	return r, nil
}

// facts returns the facts of the cluster, including the GPUs that the lab will advertise.
func (l *Lab) facts(ctx context.Context, s *scenario.Scenario) (scenario.Facts, error) {
	if l.SimulateGPUs == 0 {
		return scenario.GatherFacts(ctx, l.Client)
	}
	if s.Requires.Toolkit {
		return scenario.Facts{},
			fmt.Errorf("scenario %q requires NVIDIA's container runtime, which nodes with simulated GPUs lack: "+
				"use a cluster with the container toolkit, without --simulate-gpus; scenarios that support simulated GPUs: %s",
				s.Metadata.Name, simulatable())
	}
	if s.Requires.DevicePlugin {
		return scenario.Facts{},
			fmt.Errorf("scenario %q requires a device plugin, which nodes with simulated GPUs lack: "+
				"use a cluster with a device plugin, without --simulate-gpus; scenarios that support simulated GPUs: %s",
				s.Metadata.Name, simulatable())
	}
	return scenario.SimulateGPUs(ctx, l.Client, l.SimulateGPUs, max(mostNodes, s.Requires.Nodes))
}

// workload reads the trainer's Deployment, unless its namespace is protected.
func (l *Lab) workload(ctx context.Context) (*scenario.WorkloadFacts, error) {
	_, name, _ := strings.Cut(l.Workload, "/")
	named := objects.Object{
		Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: l.WorkloadNamespace,
		Name: name,
	}
	if err := named.MayTouch(l.LedgerNamespace); err != nil {
		return nil, err
	}
	return scenario.FindWorkload(ctx, l.Client, l.WorkloadNamespace, l.Workload)
}

// simulatable lists the names of the scenarios that support simulated GPUs.
func simulatable() string {
	all, err := scenario.Builtin()
	if err != nil { // tests verify that all scenarios parse
		return "the others"
	}
	var names []string
	for _, s := range all {
		if s.Requires.Simulatable() {
			names = append(names, s.Metadata.Name)
		}
	}
	return strings.Join(names, ", ")
}

// simulate advertises GPUs on nodes without GPUs by patching the status of the nodes: kubelets preserve unknown
// extended resources (https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/), even when they
// restart (verified with 1.36.3). The labels are added first and removed last, so that simulated GPUs are always
// labeled as such.
func (s *start) simulate() error {
	sim := s.r.Facts.Simulation
	if sim == nil {
		return nil
	}
	labels, gpus := map[string]any{}, map[string]any{scenario.GPUResource: strconv.Itoa(sim.GPUs)}
	for name, value := range sim.Labels() {
		labels[name] = value
	}
	for _, node := range sim.Nodes {
		for _, patching := range []*objects.Patching{
			{Merge: map[string]any{"metadata": map[string]any{"labels": labels}}},
			{
				Subresource: "status",
				Merge:       map[string]any{"status": map[string]any{"capacity": gpus, "allocatable": gpus}},
			},
		} {
			action := fmt.Sprintf("advertise %s on node %s", count.Of(sim.GPUs, "simulated GPU"), node)
			if patching.Subresource == "" {
				action = "label node " + node + " as having simulated GPUs"
			}
			patching.Dynamic, patching.Mapper, patching.LedgerNamespace = s.lab.Dynamic, s.lab.Mapper,
				s.lab.LedgerNamespace
			patching.APIVersion, patching.Kind, patching.Name = "v1", kindNode, node
			if s.lab.fake.step != nil {
				s.add(nil, s.lab.fake.step(action, scenario.Step{}))
				continue
			}
			needs, err := patching.Permissions()
			if err != nil {
				return err
			}
			change := patching.Change(action)
			change.Harmless = true
			s.add(needs, change)
			s.plan.Checks = append(s.plan.Checks, patching.Check)
		}
	}
	return nil
}

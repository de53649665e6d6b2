package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Outcome lists the nodes on which the fault was injected, and the reasons why it was not injected on the others.
type Outcome struct {
	Nodes  int      `json:"nodes"`
	Landed []string `json:"landed"`
	Missed []Missed `json:"missed,omitempty"`
}

// Missed are nodes on which the fault was not injected, all for the same reason.
type Missed struct {
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"`
}

// Of returns the outcome of a plan from the records of its runs. If a shard has no record, the reason is the shard's
// entry in failures or, if the shard's pod has not failed, the parameter rest.
func Of(plan Plan, runs []ledger.Run, failures map[int]string, rest string) Outcome {
	byID := map[string]ledger.Run{}
	for _, run := range runs {
		byID[run.ID] = run
	}
	out := Outcome{Nodes: plan.Nodes(), Landed: []string{}}
	for i, nodes := range plan.Shards {
		id := ledger.FleetRun(plan.ID, i)
		run, recorded := byID[id]
		// Without the ID, shards that failed for the same reason have the same message.
		failure := cmp.Or(strings.ReplaceAll(failures[i], id, "RUN"), rest)
		for _, node := range nodes {
			why := failure
			if recorded {
				why = missed(run, node)
			}
			if why == "" {
				out.Landed = append(out.Landed, node)
				continue
			}
			out.miss(why, node)
		}
	}
	sorting.StableFunc(out.Missed, func(a, b Missed) int { return len(b.Nodes) - len(a.Nodes) })
	return out
}

func (o *Outcome) miss(reason, node string) {
	for i := range o.Missed {
		if o.Missed[i].Reason == reason {
			o.Missed[i].Nodes = append(o.Missed[i].Nodes, node)
			return
		}
	}
	o.Missed = append(o.Missed, Missed{Reason: reason, Nodes: []string{node}})
}

// missed returns the reason why the fault was not injected on a node, or "" if it was. The reason does not contain the
// names of the node and its debug pod, so that it is the same for all nodes to which it applies.
func missed(run ledger.Run, node string) string {
	why := "the record has no step for the node"
	for _, step := range run.Steps {
		if step.Target.Name != node {
			continue
		}
		switch {
		case step.State == ledger.StateProven, step.State == ledger.StatePermanent && len(step.Evidence) > 0:
			return ""
		case step.State == ledger.StatePermanent:
			why = "the fault may be in place, but could not be verified"
		case step.State == ledger.StateFailed:
			why = cmp.Or(firstLine(step.Message), "failed")
		default:
			why = cmp.Or(firstLine(step.Message), firstLine(run.Message), string(run.Phase))
			why = fmt.Sprintf("%s: %s", step.State, why)
		}
	}
	return strings.NewReplacer(debugpod.PodName(run.ID, node), "POD", node, "NODE").Replace(why)
}

// Merge combines the runs of a fleet into one run to show to users. The result cannot be stored.
func Merge(fleet string, runs []ledger.Run) ledger.Run {
	var merged ledger.Run
	var phases []string
	for i, run := range slices.SortedFunc(slices.Values(runs), ledger.CompareShards) {
		if i == 0 {
			merged = run.Clone()
			merged.ID, merged.Steps = fleet, nil
		}
		merged.Steps = append(merged.Steps, run.Steps...)
		if run.Created.Before(merged.Created) {
			merged.Created = run.Created
		}
		if run.Until.After(merged.Until) {
			merged.Until = run.Until
		}
		switch {
		case !run.IsClosed():
			merged.Closed = time.Time{}
		case merged.IsClosed() && run.Closed.After(merged.Closed):
			merged.Closed = run.Closed
		}
		if phase := string(run.Phase); !slices.Contains(phases, phase) {
			phases = append(phases, phase)
		}
	}
	slices.Sort(phases)
	merged.Phase = ledger.Phase(strings.Join(phases, ","))
	return merged
}

// Fold replaces the runs of each fleet with one run; see Merge.
func Fold(runs []ledger.Run) []ledger.Run {
	byFleet := map[string][]ledger.Run{}
	for _, run := range runs {
		byFleet[run.Fleet] = append(byFleet[run.Fleet], run)
	}
	var folded []ledger.Run
	for _, run := range runs {
		switch of := byFleet[run.Fleet]; {
		case run.Fleet == "":
			folded = append(folded, run)
		case of != nil:
			folded = append(folded, Merge(run.Fleet, of))
			byFleet[run.Fleet] = nil
		}
	}
	return folded
}

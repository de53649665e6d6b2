// Package firewall implements the fault that makes nodes drop packets between their pods and a TCP port, or between
// some of their pods and the peers of these pods, using nftables rules in a separate table.
//
// The node's kernel is the dead man's switch: it removes the ports or addresses from the rules after a timeout, even if
// the client, the API server, the debug pod, or the kubelet fails. A reboot also removes the rules.
package firewall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind for firewalls.
const UndoKind = "node-firewall"

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	Firewall(ctx context.Context, what api.Firewall) (*api.BuiltFirewall, error)
	RemoveFirewall(ctx context.Context, what api.RemoveFirewall) (*api.RemovedFirewall, error)
	// Close deletes the pod, even if ctx is canceled. The firewall rule stays in place.
	Close(ctx context.Context) error
}

// Start creates a debug pod for a run on a node and waits until it is running.
type Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)

// Injection creates firewall rules. Its plan must have a TTL.
type Injection struct {
	Start Start
}

// claim is the content of ledger.Undo.Data. Anyone with permission to write ConfigMaps may have written it, so it only
// shows that a rule may exist. The details are in the node's kernel.
type claim struct {
	Firewall api.Firewall `json:"firewall"`
}

// claimOf returns the request that the step claims to have made, or the zero value.
func claimOf(step ledger.Step) api.Firewall {
	var made claim
	if json.Unmarshal(step.Undo.Data, &made) != nil {
		return api.Firewall{}
	}
	return made.Firewall
}

// Change returns the change to one node, for use in a fault.Plan. The TTL of the firewall (what) and the table of a
// partition are set when the change is applied.
func (in *Injection) Change(nodeName, action string, what api.Firewall) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: "Node", Name: nodeName},
		Action: action,
		Undo:   ledger.Undo{Kind: UndoKind},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return in.apply(ctx, nodeName, what, r)
		},
	}
}

func (in *Injection) apply(
	ctx context.Context, nodeName string, what api.Firewall, r fault.Recorder,
) (evidence []ledger.Evidence, err error) {
	run := r.Run()
	if run.Until.IsZero() {
		return nil, errors.New("a firewall rule requires a TTL, after which the node's kernel removes it")
	}
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, run, nodeName, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	if what.TTL = time.Until(run.Until).Round(time.Second); what.TTL <= 0 {
		return nil,
			fmt.Errorf("the run expired at %s, before the fault could be injected", run.Until.Format(time.RFC3339))
	}
	if what.Partition != nil {
		what.Table = api.PartitionTable(run.ID)
	}
	if err := what.Validate(); err != nil {
		return nil, err
	}
	undo, err := json.Marshal(claim{what})
	if err != nil {
		return nil, fmt.Errorf("encode the undo: %w", err)
	}
	if err := r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = undo }); err != nil {
		return nil, err
	}
	r.Progress("adding a firewall rule")
	proof, err := pod.Firewall(ctx, what)
	if nothingMade(err) {
		// Save this even if the user has interrupted the run: the node has no rule to remove.
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
		defer cancel()
		return nil, errors.Join(err, r.Save(after, func(s *ledger.Step) { s.Undo.Data = nil }))
	}
	if err != nil {
		return nil, err
	}
	return evidenceOf(*proof, what), nil
}

// evidenceOf returns the evidence that packets are dropped.
func evidenceOf(proof api.BuiltFirewall, what api.Firewall) []ledger.Evidence {
	now := time.Now().UTC().Truncate(time.Millisecond)
	text := fmt.Sprintf("%s; the kernel removes the rule in %s", proof.Rule, proof.Expires.Round(time.Second))
	all := []ledger.Evidence{{Source: "nftables", Time: now, Text: text}}
	if len(proof.Probes) > 0 {
		verb := "dropped"
		if what.IsSlow() {
			verb = "measured"
		}
		all = append(all, ledger.Evidence{Source: "probe", Time: now, Text: verb + ": " + abridged(proof.Probes)})
	}
	if what.Partition != nil && proof.Unprobed > 0 {
		all = append(all, ledger.Evidence{
			Source: "probe", Time: now,
			Text: fmt.Sprintf("%s could only be read back, because no selected pod on the node can send a matching "+
				"packet", count.Of(proof.Unprobed, "rule")),
		})
	}
	return all
}

// mostProbes is the maximum number of probes in the evidence.
const mostProbes = 4

func abridged(probes []string) string {
	if len(probes) <= mostProbes {
		return strings.Join(probes, ", ")
	}
	return fmt.Sprintf("%s, and %d more", strings.Join(probes[:mostProbes], ", "), len(probes)-mostProbes)
}

// forgetTimeout is the timeout for recording that no rule was created.
const forgetTimeout = 10 * time.Second

// nothingMade reports whether the node failed before it changed anything, or has already undone its change.
func nothingMade(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && (refused.Code == api.CodeExists || refused.Code == api.CodeNoFilter ||
		refused.Code == api.CodeBypassed || refused.Code == api.CodeNotRunning)
}

// Undoer removes firewall rules. Start may be nil if only Describe is called.
type Undoer struct {
	fault.OnNode
	Start Start
	// Overwrite also removes anything that other programs have added to the table in the meantime.
	Overwrite bool
}

var (
	_ fault.Needer     = Undoer{}
	_ fault.NodeUndoer = Undoer{}
)

// Describe implements fault.Undoer.
func (u Undoer) Describe(step ledger.Step) string {
	if claimOf(step).IsSlow() {
		return "remove the run's table from the node's nftables, and the queueing disciplines from the pods' links"
	}
	return "remove the run's table from the node's nftables"
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	say := u.Say(step)
	table, made := "with the set "+api.FirewallSet(run.ID), claimOf(step)
	if made.Partition != nil {
		table = "inet " + api.PartitionTable(run.ID)
	}
	byHand :=
		fmt.Sprintf("; to remove it manually, delete the table %s on the node (nft list ruleset); the kernel also removes it when "+
			"the run expires, or when the node reboots", table)
	pod, err := u.Start(ctx, run, step.Target.Name, say)
	if err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand)
	}
	say("removing the firewall rule")
	removed, err := pod.RemoveFirewall(ctx, api.RemoveFirewall{Overwrite: u.Overwrite})
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeNoFilter { // the rule never existed
		removed, err = &api.RemovedFirewall{}, nil
	}
	if err = errors.Join(err, pod.Close(ctx)); err != nil {
		return "", "", fmt.Errorf("%w%s", err, byHand)
	}
	state, said := fate(*removed, made.IsSlow())
	return state, said, nil
}

// fate returns the final state of the step, and describes what happened to the run's table.
func fate(removed api.RemovedFirewall, slow bool) (ledger.State, string) {
	links := ""
	if removed.Links > 0 {
		links = "; the queueing disciplines of " + count.Of(removed.Links, "pod link") + " were removed"
	}
	if !removed.Removed {
		return ledger.StateReverted, "the node has no table from this run: another client removed it, it was never " +
			"created, or the node has rebooted" + links
	}
	dropped := ""
	if removed.Dropped > 0 {
		verb := "dropped"
		if slow {
			verb = "slowed down"
		}
		dropped = fmt.Sprintf("; the rule had %s %s", verb, count.Of(removed.Dropped, "packet"))
	}
	dropped += links
	switch {
	case len(removed.Left) > 0:
		return ledger.StateSuperseded,
			fmt.Sprintf("the run's rule was removed%s; the table inet %s remains, because another client has added to it: %s; "+
				"to delete the table: nft delete table inet %[2]s", dropped, removed.Table,
				strings.Join(removed.Left, ", "))
	case removed.Expired:
		return ledger.StateReverted,
			fmt.Sprintf("the table inet %s was removed; its rule had already expired%s", removed.Table, dropped)
	}
	return ledger.StateReverted, fmt.Sprintf("the table inet %s was removed%s", removed.Table, dropped)
}

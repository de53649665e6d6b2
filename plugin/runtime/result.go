package runtime

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// before describes, on stderr, the planned change, the nodes, the symptoms and how the fault ends.
func (b *breaking) before(say func(string, ...any), names []string, context string) {
	say("%s: %s, in context %q", b.summary(), list(names), context)
	say("What: %s. Nothing else in the files is changed.", b.info.Summary)
	if other := b.pods.OtherImage(); other != "" {
		say("How: a privileged pod%s changes the files and restarts containerd.", other)
	}
	if b.noRestart {
		say("containerd is not restarted: pods start as before until it is restarted.")
	} else {
		say("containerd is restarted; running containers are not affected. Symptom: %s",
			strings.ReplaceAll(b.info.Symptom, "nvidia", b.handler))
	}
	by := "; when the TTL expires, the node restores itself"
	if b.ttl.TTL == 0 {
		by = ""
	}
	say("Duration: %s. Undo: `kubectl gpu-fault revert RUN`, or delete the debug pod%s.", b.ttl.String(), by)
	if b.info.NodeLoss && !b.noRestart {
		say(
			"Warning: the node will be NotReady, and no pod can start on it, not even for a revert: the dead man's switch restores it.",
		)
		say("To restore it earlier, run on the node: %s", restoreByHand("RUN"))
	}
	say("")
}

func (b *breaking) printDryRun(streams genericiooptions.IOStreams, names []string, plan fault.Plan) error {
	if !b.format.IsTable() {
		var objects []string
		for _, name := range names {
			objects = append(objects, "node/"+name)
		}
		return b.format.Object(streams.Out, plan.Planned(), objects...)
	}
	for _, name := range names {
		fmt.Fprintf(streams.Out, "node/%s broken (%s dry run)\n", name, b.dryRun)
	}
	return nil
}

// print prints the evidence as a table, or the whole record in other formats.
func (b *breaking) print(streams genericiooptions.IOStreams, connection *kube.Connection, run *ledger.Run) error {
	if run == nil {
		return nil
	}
	if !b.format.IsTable() {
		return b.format.Object(streams.Out, run, "run/"+run.ID)
	}
	table := &printer.Table{Header: []string{"NODE", "SOURCE", "PROOF"}, NoHeader: b.format.NoHeader}
	proven := 0
	for _, step := range run.Steps {
		if step.State != ledger.StateProven {
			continue
		}
		proven++
		for _, e := range step.Evidence {
			table.Add(step.Target.Name, e.Source, e.Text)
		}
	}
	if proven == 0 {
		return nil
	}
	if err := table.Write(streams.Out); err != nil {
		return err
	}
	end := "no end"
	if !run.Until.IsZero() {
		end = "until " + run.Until.Local().Format("15:04:05")
	}
	printer.Talk(streams.ErrOut, "broken on %s, %s; to undo it: %s", list(nodesOf(*run)), end,
		ledger.New(nil, connection.LedgerNamespace).Command("revert", run.ID))
	return nil
}

func nodesOf(run ledger.Run) []string {
	var names []string
	for _, step := range run.Steps {
		if step.State == ledger.StateProven {
			names = append(names, step.Target.Name)
		}
	}
	return names
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

package injected

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// checkOwnLines reports kernel log lines that closed runs wrote.
func checkOwnLines(f *facts.Facts, r *engine.Result) {
	ours := map[string][]finding.Evidence{} // by run
	where := map[string][]string{}
	for _, n := range f.Nodes {
		v := n.GPUs()
		for _, line := range v.Ours {
			if !slices.Contains(where[line.Run], n.Name) {
				where[line.Run] = append(where[line.Run], n.Name)
			}
			if len(ours[line.Run]) < words.Few {
				ours[line.Run] = append(ours[line.Run], v.Quote(line.Record))
			}
		}
	}
	for _, run := range f.Runs {
		if run.Closed.IsZero() || len(where[run.ID]) == 0 {
			continue
		}
		r.Add(finding.Finding{
			Object: finding.Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), Severity: finding.Info,
			Nodes:    where[run.ID],
			Title:    "this tool wrote lines to a kernel log for a finished test: the lines do not concern the GPU",
			Evidence: append([]finding.Evidence{facts.RunEvidence(run)}, ours[run.ID]...),
			Fix: finding.Fix{
				Text: "No action is required: the lines stay until the node is rebooted. If a detector acted on a line, clear the detector's state.",
			},
		})
	}
}

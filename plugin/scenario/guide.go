package scenario

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Guide returns the interviewer's guide to a scenario as Markdown: what the candidate sees, what to check, how the
// exercise is graded, and the answer. The scenario must be resolved, so that all names and numbers are final.
func Guide(r *scenario.Resolved) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	name := r.Metadata.Name
	line("# %s\n", r.Public.Title)
	line("Scenario: `%s`. Level: %s. Time: %s. Requires: %s. This page shows the variant for seed %d on a cluster of two nodes, each with two GPUs. Other seeds use other names, "+
		"and may have a different cause. To see the answer for a running exercise, run `scenario reveal`.\n", name,
		r.Metadata.Difficulty, count.Of(r.Metadata.Minutes, "minute"), needs(r.Requires), r.Seed)
	if other := r.Requires.Otherwise; other != "" {
		line("If the cluster does not enforce NetworkPolicies, `start` reports this and starts [%s](%[1]s.md) instead.\n", other)
	}
	line(
		"## How to run it\n\nYou run all of these commands; the candidate has only kubectl and the kubeconfig. The candidate tells you the diagnosis or writes it to a file, and you submit it.\n",
	)
	line("    kubectl gpu-fault scenario start %s --seed %d --kubeconfig-out candidate.kubeconfig", name, r.Seed)
	line("    kubectl gpu-fault scenario hint                     # when the candidate asks for one")
	line("    kubectl gpu-fault scenario submit                   # the candidate's diagnosis")
	line("    kubectl gpu-fault scenario grade --html report.html")
	line("    kubectl gpu-fault scenario reveal\n    kubectl gpu-fault scenario end\n")
	line("## Briefing for the candidate\n\n%s\n", quote(r.Public.Briefing))
	if r.Public.Simulated != "" {
		line("This is simulated, and is not part of the fault:\n\n%s\n", quote(r.Public.Simulated))
	}
	if r.Public.Terraform != "" {
		line("With `--terraform module`, the candidate also gets the lab's Terraform module and this text:\n\n%s\n",
			quote(r.Public.Terraform))
		line("The candidate fixes the cluster or the module. Submit the directory with `scenario submit --terraform module`. `grade` first applies the module with the candidate's permissions, " +
			"and then evaluates the values of the google provider's resources in the module.\n")
	}
	line("## Root cause\n\n%s\n", strings.TrimSpace(r.Sealed.Story))
	line("| | |\n|---|---|")
	for _, row := range [][2]string{
		{"Component", r.Sealed.RootCause.Component.Value}, {"Object", r.Sealed.RootCause.Object.Value},
		{"Field", r.Sealed.RootCause.Field.Value},
		{"Mechanism", r.Sealed.RootCause.Mechanism.Value},
	} {
		line("| %s | `%s` |", row[0], strings.ReplaceAll(row[1], "|", `\|`))
	}
	line("\n## How to find the cause\n")
	for i, l := range r.Sealed.Look {
		line("%d. `%s`\n\n   %s\n", i+1, l.Command, strings.TrimSpace(l.Shows))
	}
	line("## Solutions\n")
	for _, a := range r.Sealed.Solutions {
		line("- **%s**: %s", a.Name, strings.TrimSpace(a.Why))
	}
	line("\n## Fixes that must not pass\n")
	for _, a := range r.Sealed.WrongFixes {
		line("- **%s**: %s", a.Name, strings.TrimSpace(a.Why))
	}
	if len(r.Sealed.Hints) > 0 {
		line("\n## Hints and their cost\n")
		for _, h := range r.Sealed.Hints {
			line("- %s: %s", count.Of(h.Cost, "point"), strings.TrimSpace(h.Text))
		}
	}
	line("\n## Evaluation criteria\n")
	w := r.Sealed.Grade.Weights
	if w == (scenario.Weights{}) {
		w = scenario.DefaultWeights
	}
	line("`grade` gives points for the workload's lasting recovery (%s), a correct diagnosis (%d), no other changes "+
		"(%d), the time taken (%d), and unused hints (%d). You evaluate the rest:\n",
		count.Of(w.Fixed, "point"), w.Diagnosis, w.Collateral, w.Time, w.Hints)
	for _, c := range r.Sealed.Criteria {
		line("- [ ] %s", strings.TrimSpace(c))
	}
	return b.String()
}

// quote returns text as a Markdown block quote.
func quote(text string) string {
	return "> " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n> ")
}

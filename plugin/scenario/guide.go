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
	line("`%s`, %s, %s, needs %s. This page shows what seed %d draws on a cluster of two nodes with two GPUs each: other seeds draw other names, "+
		"and may draw another cause. Of an exercise that runs, `scenario reveal` tells the answer.\n", name,
		r.Metadata.Difficulty, count.Of(r.Metadata.Minutes, "minute"), needs(r.Requires), r.Seed)
	if other := r.Requires.Otherwise; other != "" {
		line("Where NetworkPolicies are not enforced `start` plays [%s](%[1]s.md) in its place, and says so.\n", other)
	}
	line(
		"## How to run it\n\nAll of this is yours; the candidate only has kubectl and the kubeconfig. They tell you the diagnosis, or write it into a file, and you hand it in.\n",
	)
	line("    kubectl gpu-fault scenario start %s --seed %d --kubeconfig-out candidate.kubeconfig", name, r.Seed)
	line("    kubectl gpu-fault scenario hint                     # when they ask for one")
	line("    kubectl gpu-fault scenario submit                   # their diagnosis")
	line("    kubectl gpu-fault scenario grade --html report.html")
	line("    kubectl gpu-fault scenario reveal\n    kubectl gpu-fault scenario end\n")
	line("## What the candidate is told\n\n%s\n", quote(r.Public.Briefing))
	if r.Public.Simulated != "" {
		line("What is simulated, and is not part of the fault:\n\n%s\n", quote(r.Public.Simulated))
	}
	if r.Public.Terraform != "" {
		line("With `--terraform module` they also get the lab's Terraform module, and are told:\n\n%s\n",
			quote(r.Public.Terraform))
		line("They mend the cluster or the module; hand the folder in with `scenario submit --terraform module`. `grade` applies it with the candidate's own rights before it " +
			"looks, and judges its resources of provider google by their values.\n")
	}
	line("## What is wrong\n\n%s\n", strings.TrimSpace(r.Sealed.Story))
	line("| | |\n|---|---|")
	for _, row := range [][2]string{
		{"Component", r.Sealed.RootCause.Component.Value}, {"Object", r.Sealed.RootCause.Object.Value},
		{"Field", r.Sealed.RootCause.Field.Value},
		{"Mechanism", r.Sealed.RootCause.Mechanism.Value},
	} {
		line("| %s | `%s` |", row[0], strings.ReplaceAll(row[1], "|", `\|`))
	}
	line("\n## Steps of a good candidate\n")
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
		line("\n## Hints, and what they cost\n")
		for _, h := range r.Sealed.Hints {
			line("- %s: %s", count.Of(h.Cost, "point"), strings.TrimSpace(h.Text))
		}
	}
	line("\n## Evaluation criteria\n")
	w := r.Sealed.Grade.Weights
	if w == (scenario.Weights{}) {
		w = scenario.DefaultWeights
	}
	line("Measured: it works and stays so (%s), the diagnosis (%d), nothing else was changed (%d), time (%d), no hints (%d).\n",
		count.Of(w.Fixed, "point"), w.Diagnosis, w.Collateral, w.Time, w.Hints)
	for _, c := range r.Sealed.Criteria {
		line("- [ ] %s", strings.TrimSpace(c))
	}
	return b.String()
}

// quote returns text as a Markdown quotation.
func quote(text string) string {
	return "> " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n> ")
}

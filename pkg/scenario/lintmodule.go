package scenario

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// module verifies that the settings for the Terraform module are either complete or absent.
func (l *linter) module() {
	t := l.root.get("terraform")
	switch said := l.root.find("public").get("terraform"); {
	case t != nil && said == nil:
		l.wrong(l.root.find("public"), "public.terraform",
			"is missing: must describe what the module manages")
	case t == nil && said != nil:
		l.wrong(said, "public.terraform", "requires a module, but terraform is missing")
	}
	if t != nil {
		return
	}
	sealed := l.root.find("sealed")
	for part, attempts := range map[string][]Attempt{
		"solutions": l.s.Sealed.Solutions, "wrongFixes": l.s.Sealed.WrongFixes,
	} {
		for i, a := range attempts {
			if a.Terraform {
				l.wrong(item(sealed.find(part), i), fmt.Sprintf("sealed.%s[%d].terraform", part, i),
					"requires a module, but terraform is missing")
			}
		}
	}
}

// modulePlayed verifies that the module can be written before and after each Terraform attempt, and that grading
// accepts the results.
func (l *linter) modulePlayed(r *Resolved) {
	at := r.source.root.find("terraform")
	began, err := r.Module()
	if err != nil {
		l.wrong(at, "terraform", "%v", err)
		return
	}
	if began == nil {
		return
	}
	files, err := began.Write()
	if err != nil {
		l.wrong(at, "terraform", "%v", err)
		return
	}
	for name, text := range files {
		for _, s := range secretWords(r) {
			if contains(string(text), s) {
				l.wrong(at, "terraform", "file %s of the module contains %q, which reveals the answer", name, s)
			}
		}
	}
	solved := false
	for part, attempts := range map[string][]Attempt{
		"solutions": r.Sealed.Solutions, "wrongFixes": r.Sealed.WrongFixes,
	} {
		for i, a := range attempts {
			if !a.Terraform {
				continue
			}
			solved = solved || part == "solutions"
			if err := r.handsIn(began.Module, a); err != nil {
				l.wrong(item(r.source.root.find("sealed", part), i), fmt.Sprintf("sealed.%s[%d]", part, i), "%v", err)
			}
		}
	}
	if !solved {
		l.wrong(at, "sealed.solutions", "must include a solution that uses the Terraform module when "+
			"%s", describe(r.Drawn))
	}
}

// handsIn returns an error if grading would reject the module after an attempt.
func (r *Resolved) handsIn(began terraform.Module, a Attempt) error {
	after, err := r.ModuleAfter(a)
	if err != nil {
		return err
	}
	if _, err := after.Write(); err != nil {
		return err
	}
	return after.Within(began, slices.Clone(r.Public.Access.Namespaces))
}

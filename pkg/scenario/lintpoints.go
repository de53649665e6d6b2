package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// weights verifies that the points add up to 100, and that hints do not cost more than their share.
func (l *linter) weights() {
	w := l.s.Sealed.Grade.Weights
	n := l.root.find("sealed", "grade", "weights")
	if sum := w.Fixed + w.Diagnosis + w.Collateral + w.Time + w.Hints; w != (Weights{}) && sum != 100 {
		l.wrong(n, "sealed.grade.weights", "must add up to 100, not %d", sum)
	}
	if w == (Weights{}) {
		w = DefaultWeights
	}
	cost := 0
	for i, h := range l.s.Sealed.Hints {
		if h.Cost < 0 {
			l.wrong(item(l.root.find("sealed", "hints"), i), fmt.Sprintf("sealed.hints[%d].cost", i), "is negative")
		}
		if h.When == "" {
			cost += h.Cost
		}
	}
	if cost > w.Hints {
		l.warn(l.root.find("sealed", "hints"), "sealed.hints", "cost %s in total, but hints are worth only %d",
			count.Of(cost, "point"), w.Hints)
	}
}

// names finds duplicate names of attempts, because reports identify attempts by their names.
func (l *linter) names() {
	twice := func(path []string, field string, names []string) {
		for i, name := range names {
			if name != "" && slices.Index(names, name) < i {
				l.warn(item(l.root.find(path...), i), fmt.Sprintf("%s[%d].name", field, i),
					"duplicate name %q: reports identify attempts by name", name)
			}
		}
	}
	attempts := func(all []Attempt) (names []string) {
		for _, a := range all {
			names = append(names, a.Name)
		}
		return names
	}
	twice([]string{"sealed", "solutions"}, "sealed.solutions", attempts(l.s.Sealed.Solutions))
	twice([]string{"sealed", "wrongFixes"}, "sealed.wrongFixes", attempts(l.s.Sealed.WrongFixes))
}

// choices verifies that the offered choices, if any, include the correct answer.
func (l *linter) choices() {
	one := func(name string, choices []string, right Answer) {
		if len(choices) == 0 {
			return
		}
		field, n := "public.choices."+name, l.root.find("public", "choices", name)
		if len(choices) < leastVariants {
			l.warn(n, field, "offers only %d, which makes guessing easy", len(choices))
		}
		if strings.Contains(strings.Join(choices, ""), "${") || strings.Contains(right.Value, "${") {
			return // checked when the scenario is resolved
		}
		l.offered(n, field, choices, right)
	}
	one("component", l.s.Public.Choices.Component, l.s.Sealed.RootCause.Component)
	one("mechanism", l.s.Public.Choices.Mechanism, l.s.Sealed.RootCause.Mechanism)
}

func (l *linter) offered(n *node, field string, choices []string, right Answer) {
	if len(choices) > 0 &&
		!slices.ContainsFunc(choices, func(c string) bool { return score("", right, c, sameWords).Right }) {
		l.wrong(n, field, "must include the correct answer, %q", right.Value)
	}
}

package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// weights are points of 100, which hints do not exceed.
func (l *linter) weights() {
	w := l.s.Sealed.Grade.Weights
	n := l.root.find("sealed", "grade", "weights")
	if sum := w.Fixed + w.Diagnosis + w.Collateral + w.Time + w.Hints; w != (Weights{}) && sum != 100 {
		l.wrong(n, "sealed.grade.weights", "add up to %d, and not to 100", sum)
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
		l.warn(l.root.find("sealed", "hints"), "sealed.hints", "cost %s together, of the %d that hints have",
			count.Of(cost, "point"), w.Hints)
	}
}

// names are those that reports tell checks and attempts apart by.
func (l *linter) names() {
	twice := func(path []string, field string, names []string) {
		for i, name := range names {
			if name != "" && slices.Index(names, name) < i {
				l.warn(item(l.root.find(path...), i), fmt.Sprintf("%s[%d].name", field, i),
					"%q stands twice: reports tell them apart by it", name)
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

// choices offer the right answer among others, or nothing at all.
func (l *linter) choices() {
	one := func(name string, choices []string, right Answer) {
		if len(choices) == 0 {
			return
		}
		field, n := "public.choices."+name, l.root.find("public", "choices", name)
		if len(choices) < leastVariants {
			l.warn(n, field, "has %d of them, which is little to guess among", len(choices))
		}
		if strings.Contains(strings.Join(choices, ""), "${") || strings.Contains(right.Value, "${") {
			return // seen when it is played
		}
		l.offered(n, field, choices, right)
	}
	one("component", l.s.Public.Choices.Component, l.s.Sealed.RootCause.Component)
	one("mechanism", l.s.Public.Choices.Mechanism, l.s.Sealed.RootCause.Mechanism)
}

func (l *linter) offered(n *node, field string, choices []string, right Answer) {
	if len(choices) > 0 &&
		!slices.ContainsFunc(choices, func(c string) bool { return score("", right, c, sameWords).Right }) {
		l.wrong(n, field, "does not have the right one, %q", right.Value)
	}
}

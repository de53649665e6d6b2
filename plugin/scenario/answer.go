package scenario

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
)

// ask asks for confirmation of an irreversible action that changes nothing in the cluster.
func (c *common) ask(ctx context.Context, question string, yes bool) error {
	return confirm.Ask(ctx, c.streams, question, yes)
}

// answer formats the sealed half of a scenario as text.
func answer(s *scenario.Sealed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(s.Story))
	fmt.Fprintf(&b, "Component:  %s\nObject:     %s\nField:      %s\nMechanism:  %s\n", s.RootCause.Component.Value,
		s.RootCause.Object.Value, s.RootCause.Field.Value,
		s.RootCause.Mechanism.Value)
	if len(s.Look) > 0 {
		b.WriteString("\nWhere to look:\n")
		for _, l := range s.Look {
			fmt.Fprintf(&b, "  %s\n      %s\n", l.Command, l.Shows)
		}
	}
	b.WriteString("\nSolutions:\n")
	for _, a := range s.Solutions {
		fmt.Fprintf(&b, "  %s: %s\n", a.Name, a.Why)
	}
	b.WriteString("\nFixes that do not pass:\n")
	for _, a := range s.WrongFixes {
		fmt.Fprintf(&b, "  %s: %s\n", a.Name, a.Why)
	}
	return strings.TrimRight(b.String(), "\n")
}

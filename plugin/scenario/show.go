package scenario

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func (c *common) newShowCommand() *cobra.Command {
	var (
		pack   packFlags
		format printer.Format
	)
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the public part of a scenario, without the answer",
		Example: `  # Show a built-in scenario
  kubectl gpu-fault scenario show gpu-resources

  # Show your own scenario
  kubectl gpu-fault scenario show --file my-scenario.yaml`,
		Args: usage.MaxArgs(1, "one scenario", "kubectl gpu-fault scenario show gpu-resources"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			s, err := pack.load(one(args))
			// The public half of a sealed scenario can always be read.
			if err != nil && !errors.Is(err, scenario.ErrSealed) {
				return err
			}
			if !format.IsTable() {
				return format.Object(c.streams.Out, publicOf(s), "scenario/"+s.Metadata.Name)
			}
			_, err = fmt.Fprintln(c.streams.Out,
				printer.Wrap(printer.Escape(describe(s)), printer.Width(c.streams.Out)))
			return err
		},
		ValidArgsFunction: completeNames,
	}
	pack.addFlags(cmd)
	format.AddFlags(cmd)
	return cmd
}

// describe formats the public half as text. Parameters are resolved when the scenario starts; until then, they are
// shown as three dots.
func describe(s *scenario.Scenario) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n\n", s.Public.Title, s.Metadata.Name)
	fmt.Fprintf(&b, "Level:       %s\nTime box:    %s\nRequires:    %s\n", s.Metadata.Difficulty,
		count.Of(s.Metadata.Minutes, "minute"), needs(s.Requires))
	if other := s.Requires.Otherwise; other != "" {
		fmt.Fprintf(&b, "Otherwise:   %s, if NetworkPolicies are not enforced\n", other)
	}
	if len(s.Metadata.Tags) > 0 {
		fmt.Fprintf(&b, "Tags:        %s\n", strings.Join(s.Metadata.Tags, ", "))
	}
	fmt.Fprintf(&b, "\n%s\n", undrawn(s.Public.Briefing))
	if s.Public.Simulated != "" {
		fmt.Fprintf(&b, "\nSimulated: %s\n", undrawn(s.Public.Simulated))
	}
	if s.Public.Terraform != "" {
		fmt.Fprintf(&b, "\nTerraform: %s\nTo write the module, use start --terraform DIR.\n", undrawn(s.Public.Terraform))
	}
	return strings.TrimRight(b.String(), "\n")
}

// undrawn returns the text with each ${...} expression replaced by three dots.
func undrawn(text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found {
			return strings.TrimSpace(b.String())
		}
		_, after, closed := strings.Cut(rest, "}")
		if !closed {
			b.WriteString("${" + rest)
			return strings.TrimSpace(b.String())
		}
		b.WriteString("...")
		text = after
	}
}

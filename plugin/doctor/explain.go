package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// newExplainCommand returns `doctor explain`.
func newExplainCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "explain CHECK",
		Short: "Explain what a check reads, how it reaches its conclusion, and what its findings explain",
		Example: `  kubectl gpu-fault doctor explain rt.wrong-instance

  # List all checks
  kubectl gpu-fault doctor checks`,
		Args: usage.ExactArgs(1, "the ID of a check", "kubectl gpu-fault doctor explain rt.wrong-instance"),
		RunE: func(_ *cobra.Command, args []string) error {
			id := strings.TrimPrefix(args[0], "finding/")
			for _, c := range doctor.Checks() {
				if c.ID == id {
					explain(streams, c, doctor.Checks())
					return nil
				}
			}
			if err := known("explain", []string{id}); err != nil {
				return err
			}
			return fmt.Errorf("explain: specify one check, not a pattern; see: kubectl gpu-fault doctor checks")
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			var words []cobra.Completion
			for _, c := range doctor.Checks() {
				if len(args) == 0 && strings.HasPrefix(c.ID, prefix) {
					words = append(words, cobra.CompletionWithDesc(c.ID, c.Title))
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func explain(streams genericiooptions.IOStreams, c engine.Check, all []engine.Check) {
	width := report.WidthFor(printer.Width(streams.Out))
	section := func(name, text string) {
		if text == "" {
			return
		}
		fmt.Fprintf(streams.Out, "\n%s:\n", name)
		for line := range strings.Lines(text) {
			for _, part := range printer.WrapHanging("  "+strings.TrimRight(line, "\n"), width, "  ") {
				fmt.Fprintln(streams.Out, part)
			}
		}
	}
	for _, part := range printer.WrapHanging(c.ID+": "+c.Title, width, "  ") {
		fmt.Fprintln(streams.Out, part)
	}
	section("Layer", string(c.Layer))
	section("Needs", needs(c))
	section("Reads", c.Reads)
	section("How it reaches its conclusion", c.Why)
	section("Explains, if both concern the same node or pod", described(expand(c.Explains, all), all))
	section("Is explained by", described(causes(c, all), all))
	section("Seen in", strings.Join(report.Sources(c), "\n"))
	section("See", c.Doc)
}

func needs(c engine.Check) string {
	says := map[engine.Need]string{
		engine.NeedAPI: "API objects", engine.NeedLogs: "pod logs",
		engine.NeedNode:   "a privileged pod that reads the node",
		engine.NeedImages: "image information from registries",
	}
	var all []string
	for _, n := range c.Needs {
		all = append(all, fmt.Sprintf("%s: %s", n, says[n]))
	}
	return strings.Join(all, "\n")
}

// manyChecks is the maximum number of checks to list with their titles.
const manyChecks = 12

// described returns one line per check, with the check's ID and title. If there are more than manyChecks checks, it
// returns one line of IDs per family.
func described(ids []string, all []engine.Check) string {
	var lines []string
	if len(ids) > manyChecks {
		for _, family := range families(ids) {
			var names []string
			for _, id := range ids {
				if strings.HasPrefix(id, family+".") {
					names = append(names, id)
				}
			}
			lines = append(lines, strings.Join(names, ", "))
		}
		return strings.Join(lines, "\n")
	}
	for _, id := range ids {
		line := id
		if i := slices.IndexFunc(all, func(c engine.Check) bool { return c.ID == id }); i >= 0 {
			line += ": " + all[i].Title
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// expand returns the IDs of the checks that the patterns match.
func expand(patterns []string, all []engine.Check) []string {
	var ids []string
	for _, pattern := range patterns {
		found := false
		for _, c := range all {
			if finding.Means(pattern, c.ID) {
				found = true
				if !slices.Contains(ids, c.ID) {
					ids = append(ids, c.ID)
				}
			}
		}
		if !found && !slices.Contains(ids, pattern) {
			ids = append(ids, pattern)
		}
	}
	return ids
}

// causes returns the IDs of the checks that explain this one.
func causes(c engine.Check, all []engine.Check) []string {
	var ids []string
	for _, other := range all {
		if other.ID != c.ID &&
			slices.ContainsFunc(other.Explains, func(pattern string) bool { return finding.Means(pattern, c.ID) }) {
			ids = append(ids, other.ID)
		}
	}
	return ids
}

// checkList is the output of `doctor checks -o json`.
type checkList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Items      []checkItem `json:"items"`
}

type checkItem struct {
	ID          string        `json:"id"`
	Layer       finding.Layer `json:"layer"`
	Title       string        `json:"title"`
	Needs       []engine.Need `json:"needs"`
	Reads       string        `json:"reads,omitempty"`
	Why         string        `json:"why,omitempty"`
	Explains    []string      `json:"explains,omitempty"`
	ExplainedBy []string      `json:"explainedBy,omitempty"`
	Sources     []string      `json:"sources,omitempty"`
	Doc         string        `json:"doc,omitempty"`
}

// newChecksCommand returns `doctor checks`.
func newChecksCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "checks",
		Short: "List the checks, with the problem that each detects and the data that it needs",
		Example: `  kubectl gpu-fault doctor checks

  # List all details as JSON
  kubectl gpu-fault doctor checks -o json`,
		Args: usage.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			return printChecks(streams, format, doctor.Checks())
		},
	}
	format.AddFlags(cmd)
	return cmd
}

func printChecks(streams genericiooptions.IOStreams, format printer.Format, all []engine.Check) error {
	if format.IsTable() {
		table := printer.Table{Header: []string{"ID", "LAYER", "NEEDS", "LOOKS FOR"}, NoHeader: format.NoHeader}
		for _, c := range all {
			var words []string
			for _, n := range c.Needs {
				words = append(words, string(n))
			}
			table.Add(c.ID, string(c.Layer), strings.Join(words, ","), c.Title)
		}
		return table.Write(streams.Out)
	}
	list := checkList{APIVersion: snapshot.APIVersion, Kind: "DoctorCheckList", Items: []checkItem{}}
	var names []string
	for _, c := range all {
		list.Items = append(list.Items, checkItem{
			c.ID, c.Layer, c.Title, c.Needs, c.Reads, c.Why, expand(c.Explains, all), causes(c, all), report.Sources(c),
			c.Doc,
		})
		names = append(names, c.ID)
	}
	return format.Object(streams.Out, list, names...)
}

package plugin

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// widthOfHelp is the maximum width of help in columns, and the width to use if the output is not a terminal.
const widthOfHelp = 100

// setHelp gives all commands help in kubectl's style, which lists only a command's own flags and refers to `options`
// for the global flags.
func setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		writeUsage(cmd.OutOrStderr(), cmd)
		return nil
	})
	root.SetHelpCommand(newHelpCommand())
	root.AddCommand(newOptionsCommand())
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			found, rest := cmd.Root(), words
			for len(rest) > 0 {
				i := slices.IndexFunc(found.Commands(), func(c *cobra.Command) bool { return c.Name() == rest[0] })
				if i < 0 {
					return usage.UnknownCommand(found, rest)
				}
				found, rest = found.Commands()[i], rest[1:]
			}
			return found.Help()
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, words []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			var all []cobra.Completion
			if above, rest, err := cmd.Root().Find(words); err == nil && len(rest) == 0 {
				for _, c := range above.Commands() {
					if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), prefix) {
						all = append(all, cobra.CompletionWithDesc(c.Name(), c.Short))
					}
				}
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func newOptionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "options",
		Short:   "List the global flags and the environment variables that set flags",
		Example: "  kubectl gpu-fault options",
		Hidden:  true, // as in kubectl; every command's help mentions it
		Args:    usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			writeSection(out, "Global flags:", flagUsages(out, cmd.Root().PersistentFlags()))
			fmt.Fprintf(out, "%s\n", paragraphs(out, aboutEnvironment()))
			return nil
		},
	}
}

func writeHelp(out io.Writer, cmd *cobra.Command) {
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(out, "%s\n\n", paragraphs(out, about))
	writeUsage(out, cmd)
}

func writeUsage(out io.Writer, cmd *cobra.Command) {
	if cmd.HasExample() {
		writeSection(out, "Examples:", examples(out, cmd.Example))
	}
	if cmd.HasAvailableSubCommands() {
		writeSection(out, "Commands:", commands(out, cmd))
	}
	if flags := flagUsages(out, cmd.LocalNonPersistentFlags()); flags != "" {
		writeSection(out, "Flags:", flags)
	}
	var lines []string
	if cmd.HasParent() {
		lines = printer.WrapHanging("  "+cmd.UseLine(), helpWidth(out), "      ")
	}
	if cmd.HasAvailableSubCommands() {
		lines = append(lines, "  "+cmd.CommandPath()+" COMMAND [flags]")
	}
	writeSection(out, "Usage:", strings.Join(lines, "\n"))

	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "Use %q for more information about a command.\n", cmd.CommandPath()+" COMMAND --help")
	}
	fmt.Fprintf(out, "Use %q for a list of global flags (apply to all commands).\n", cmd.Root().CommandPath()+" options")
}

func writeSection(out io.Writer, title, text string) {
	fmt.Fprintf(out, "%s\n%s\n\n", title, strings.TrimRight(text, "\n"))
}

// helpWidth returns the terminal's width, at most widthOfHelp.
func helpWidth(out io.Writer) int {
	if width := printer.Width(out); width > 0 {
		return min(width, widthOfHelp)
	}
	return widthOfHelp
}

// paragraphs wraps the paragraphs of a text. Lines that begin with a space, such as YAML to copy, are not wrapped.
func paragraphs(out io.Writer, text string) string {
	var all, sentences []string
	for line := range strings.SplitSeq(strings.TrimSpace(text)+"\n", "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			sentences = append(sentences, line)
			continue
		}
		if len(sentences) > 0 {
			all = append(all, printer.Wrap(strings.Join(sentences, " "), helpWidth(out)))
			sentences = nil
		}
		all = append(all, line)
	}
	return strings.TrimRight(strings.Join(all, "\n"), "\n")
}

// examples wraps the comments of examples, but not their command lines.
func examples(out io.Writer, text string) string {
	const comment = "  # "
	var all []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, comment) {
			all = append(all, printer.WrapHanging(line, helpWidth(out), comment)...)
		} else {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}

func commands(out io.Writer, cmd *cobra.Command) string {
	var all []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			line := fmt.Sprintf("  %-*s  %s", c.NamePadding(), c.Name(), c.Short)
			all = append(all, printer.WrapHanging(line, helpWidth(out), strings.Repeat(" ", c.NamePadding()+4))...)
		}
	}
	return strings.Join(all, "\n")
}

// flagUsages returns the usage of the flags except --help, as kubectl does.
func flagUsages(out io.Writer, flags *pflag.FlagSet) string {
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			shown.AddFlag(f)
		}
	})
	return shown.FlagUsagesWrapped(helpWidth(out))
}

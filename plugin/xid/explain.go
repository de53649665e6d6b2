package xid

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// explained is the output of `xid explain -o json` for one XID. For several XIDs, the output is a catalog.
type explained struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	xid.Code
}

func newExplainCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "explain CODE...",
		Short: "Explain an XID: its meaning, its log line, accompanying errors, and the reaction of each detector",
		Example: `  # Explain XID 79, and show which detectors react to it
  kubectl gpu-fault xid explain 79

  # Explain two XIDs and an NVSwitch error
  kubectl gpu-fault xid explain 79 31 sxid:20034`,
		Args: usage.MinArgs(1, "a code", "kubectl gpu-fault xid explain 79"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			selectors, err := parseKnown(args)
			if err != nil {
				return err
			}
			if !format.IsTable() {
				return explainObject(streams.Out, format, selectors)
			}
			for i, s := range selectors {
				if i > 0 {
					fmt.Fprintln(streams.Out)
				}
				if err := explain(streams.Out, s); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: func(
			_ *cobra.Command, _ []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			return completion.Codes(prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// parseKnown parses codes, including comma-separated ones, in the same way as `xid`.
func parseKnown(args []string) ([]xid.Selector, error) {
	var all []xid.Selector
	for word := range strings.SplitSeq(strings.Join(args, ","), ",") {
		s, err := xid.ParseSelector(word)
		if err != nil {
			return nil, err
		}
		if !s.Known() {
			what := "XID " + s.String()
			if s.Kind == xid.KindSXid {
				what = fmt.Sprintf("SXid %d", s.Code)
			}
			return nil,
				fmt.Errorf("%s is not in the catalog; to list its codes, run `kubectl gpu-fault xid list`", what)
		}
		all = append(all, s)
	}
	return all, nil
}

func explainObject(out io.Writer, format printer.Format, selectors []xid.Selector) error {
	list := catalog{APIVersion: ledger.APIVersion, Kind: "XidList", Items: []xid.Code{}}
	for _, s := range selectors {
		switch s.Kind {
		case xid.KindXID:
			code, _ := xid.Lookup(s.Code)
			list.Items = append(list.Items, code)
		case xid.KindSXid:
			code, _ := xid.LookupSXid(s.Code)
			list.SXids = append(list.SXids, code)
		default:
			return fmt.Errorf("-o %s: %s has no entry in the catalog; omit -o", format.Output, s)
		}
	}
	if len(selectors) == 1 && len(list.Items) == 1 {
		return format.Object(out, explained{APIVersion: ledger.APIVersion, Kind: "Xid", Code: list.Items[0]},
			list.names()...)
	}
	return format.Object(out, list, list.names()...)
}

// example is the PCI address in the example lines.
var example = xid.PCI{Bus: 0x17}

func explain(out io.Writer, s xid.Selector) error {
	event, err := s.Event(xid.Options{PCI: example})
	if err != nil {
		return err
	}
	switch s.Kind {
	case xid.KindXID:
		code, _ := xid.Lookup(s.Code)
		explainXID(out, code, event)
	case xid.KindSXid:
		code, _ := xid.LookupSXid(s.Code)
		explainSXid(out, code, event)
	default:
		printer.Talk(out,
			"%s\nThe record that the driver writes if a GPU does not respond when the driver starts: lines without an XID.\n\n%s",
			s, event.Text())
	}
	return reactions(out, event)
}

func explainXID(out io.Writer, c xid.Code, event xid.Event) {
	printer.Talk(out, "XID %d  %s\n%s\n", c.Number, c.Name, c.Description)
	fmt.Fprintln(out)
	field(out, "Class", c.Class)
	field(out, "GPUs", strings.Join(c.Families, ", "))
	field(out, "NVIDIA says", c.NVIDIA.Immediate)
	field(out, "Then", c.NVIDIA.Investigatory)
	field(out, "Recovery action (XID 154) since", c.NVIDIA.RecoverySince)
	field(out, "Line", event.Text())
	field(out, "Source", fmt.Sprintf("%s (%s)", c.Template.Evidence, c.Template.Source))
	steps, err := xid.Cascade(c.Number, xid.Options{PCI: example})
	if err != nil {
		return // no accompanying errors are known
	}
	fmt.Fprintf(out, "\nWith --cascade:\n")
	for _, step := range steps {
		hanging(out, fmt.Sprintf("  +%-6s ", step.After), strings.ReplaceAll(step.Event.Text(), "\n", `\n`))
	}
}

func explainSXid(out io.Writer, c xid.SXid, event xid.Event) {
	severity := "a fatal error"
	if c.Severity == xid.SeverityNonFatal {
		severity = "a non-fatal error"
	}
	printer.Talk(out,
		"SXid %d  %s\n%s of an NVSwitch on one of its links; the line names the switch and the link, but no GPU\n",
		c.Number, c.Body, severity)
	fmt.Fprintln(out)
	field(out, "Line", event.Text())
	field(out, "Source", fmt.Sprintf("%s (%s)", c.Evidence, c.Source))
}

func field(out io.Writer, name, value string) {
	if value != "" {
		hanging(out, fmt.Sprintf("%-15s ", name+":"), value)
	}
}

// hanging writes text after a label. On a narrow terminal, continuation lines are indented to the start of the text.
func hanging(out io.Writer, label, text string) {
	for _, line := range printer.WrapHanging(
		label+printer.Escape(text), printer.Width(out), strings.Repeat(" ", min(len(label), 16)),
	) {
		fmt.Fprintln(out, line)
	}
}

// reactions prints whether each detector sees the event, and either its reaction or the reason why it does not.
func reactions(out io.Writer, event xid.Event) error {
	fmt.Fprintf(out, "\nWritten to /dev/kmsg in the default form:\n")
	table := printer.Table{Header: []string{"DETECTOR", "SEES", "REACTION"}}
	for _, d := range xid.Detectors() {
		v := d.Judge(event, xid.FormAuto)
		text := v.Reaction
		if v.Seen != xid.Yes {
			text = v.Why
		}
		table.Add(d.Name, string(v.Seen), text)
	}
	return table.Write(out)
}

package xid

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// catalogue is what `xid list -o json` prints.
type catalogue struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Items      []xid.Code `json:"items"`
	SXids      []xid.SXid `json:"sxids,omitempty"`
}

// explained is what `xid explain -o json` prints.
type explained struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	xid.Code
}

func newListCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "list [WORD]",
		Short: "List the XIDs of the catalogue",
		Example: `  # All
  kubectl gpu-fault xid list

  # Those about NVLink
  kubectl gpu-fault xid list nvlink`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			list := catalogue{APIVersion: ledger.APIVersion, Kind: "XidList", Items: xid.All(), SXids: xid.SXids()}
			if len(args) == 1 {
				if list.Items, list.SXids = xid.Search(args[0]), nil; len(list.Items) == 0 {
					return fmt.Errorf("no XID has %q in its number, name or description", args[0])
				}
			}
			if !format.IsTable() {
				var names []string
				for _, c := range list.Items {
					names = append(names, fmt.Sprintf("xid/%d", c.Number))
				}
				return format.Object(streams.Out, list, names...)
			}
			return list.table(format).Write(streams.Out)
		},
	}
	format.AddFlags(cmd)
	return cmd
}

func (l catalogue) table(format printer.Format) *printer.Table {
	table := &printer.Table{Header: []string{"XID", "CLASS", "NVIDIA-ACTION", "NVSENTINEL", "DESCRIPTION"}, NoHeader: format.NoHeader}
	if format.IsWide() {
		table.Header = []string{"XID", "NAME", "CLASS", "NVIDIA-ACTION", "NVSENTINEL", "GPUD", "EKS", "TEXT", "DESCRIPTION"}
	}
	for _, c := range l.Items {
		number, sentinel := fmt.Sprint(c.Number), c.Detectors[xid.IDNVSentinel].Action
		if format.IsWide() {
			table.Add(number, c.Name, c.Class, c.NVIDIA.Immediate, sentinel, c.Detectors[xid.IDGpud].Severity, c.Detectors[xid.IDEKS].Action, string(c.Template.Evidence), c.Description)
		} else {
			table.Add(number, c.Class, c.NVIDIA.Immediate, sentinel, c.Description)
		}
	}
	for _, s := range l.SXids {
		number := fmt.Sprintf("sxid:%d", s.Number)
		if format.IsWide() {
			table.Add(number, "", "link", "", "", "", "", string(s.Evidence), string(s.Severity)+", "+s.Body)
		} else {
			table.Add(number, "link", "", "", string(s.Severity)+", "+s.Body)
		}
	}
	return table
}

func newExplainCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "explain CODE",
		Short: "Explain an XID: its meaning, its line, what comes with it, what each detector does",
		Example: `  # What 79 means and who reacts to it
  kubectl gpu-fault xid explain 79`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			selector, err := xid.ParseSelector(args[0])
			if err != nil {
				return err
			}
			code, ok := xid.Lookup(selector.Code)
			if selector.Kind == xid.KindXID && !ok {
				return fmt.Errorf("XID %s is not in the catalogue: `kubectl gpu-fault xid list` shows those that are", args[0])
			}
			if selector.Kind != xid.KindXID {
				return explainLine(streams, selector)
			}
			if !format.IsTable() {
				return format.Object(streams.Out, explained{APIVersion: ledger.APIVersion, Kind: "Xid", Code: code}, fmt.Sprintf("xid/%d", code.Number))
			}
			return explain(streams, code)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completion.Codes(prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// example is where the lines of explanations come from.
var example = xid.PCI{Bus: 0x17}

func explain(streams genericiooptions.IOStreams, c xid.Code) error {
	out := streams.Out
	event, err := xid.New(c.Number, xid.Options{PCI: example})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "XID %d  %s\n%s\n\n", c.Number, c.Name, c.Description)
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(out, "%-15s %s\n", name+":", value)
		}
	}
	field("Class", c.Class)
	field("GPUs", strings.Join(c.Families, ", "))
	field("NVIDIA says", c.NVIDIA.Immediate)
	field("Then", c.NVIDIA.Investigatory)
	field("154 follows", c.NVIDIA.RecoverySince)
	field("Line", event.Text())
	field("Line is", fmt.Sprintf("%s (%s)", c.Template.Evidence, c.Template.Source))
	if steps, err := xid.Cascade(c.Number, xid.Options{PCI: example}); err == nil {
		fmt.Fprintf(out, "\nWith --cascade:\n")
		for _, step := range steps {
			fmt.Fprintf(out, "  +%-6s %s\n", step.After, strings.ReplaceAll(step.Event.Text(), "\n", `\n`))
		}
	}
	return reactions(streams, event)
}

// explainLine explains what is no XID: its line and who sees it.
func explainLine(streams genericiooptions.IOStreams, s xid.Selector) error {
	event, err := s.Event(xid.Options{PCI: example})
	if err != nil {
		return err
	}
	fmt.Fprintf(streams.Out, "%s\n\n%s\n", s, event.Text())
	return reactions(streams, event)
}

// reactions says of every detector whether it sees the event, and what it does or why it does not.
func reactions(streams genericiooptions.IOStreams, event xid.Event) error {
	fmt.Fprintf(streams.Out, "\nWritten to /dev/kmsg in the default form:\n")
	table := printer.Table{Header: []string{"DETECTOR", "SEES", "REACTION"}}
	for _, d := range xid.Detectors() {
		v := d.Judge(event, xid.FormAuto)
		text := v.Reaction
		if v.Seen != xid.Yes {
			text = v.Why
		}
		table.Add(d.Name, string(v.Seen), text)
	}
	return table.Write(streams.Out)
}

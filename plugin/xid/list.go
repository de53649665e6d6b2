package xid

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// catalog is the output of `xid list -o json`.
type catalog struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Items      []xid.Code `json:"items"`
	SXids      []xid.SXid `json:"sxids,omitempty"`
}

func newListCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "list [WORD]",
		Short: "List the XIDs in the catalog",
		Example: `  # List all XIDs
  kubectl gpu-fault xid list

  # List XIDs about NVLink
  kubectl gpu-fault xid list nvlink

  # List the XIDs in a class
  kubectl gpu-fault xid list memory

  # List NVSwitch errors
  kubectl gpu-fault xid list sxid`,
		Args: usage.MaxArgs(1, "one word", "kubectl gpu-fault xid list nvlink"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			list := catalog{APIVersion: ledger.APIVersion, Kind: "XidList", Items: xid.All(), SXids: xid.SXids()}
			if len(args) == 1 {
				if list.Items, list.SXids = search(args[0]), searchSXids(args[0]); len(list.Items)+
					len(list.SXids) == 0 {
					return fmt.Errorf("no XID or SXid contains %q in its number, name, class or description", args[0])
				}
			}
			if !format.IsTable() {
				return format.Object(streams.Out, list, list.names()...)
			}
			return list.table(format).Write(streams.Out)
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// search returns the codes whose number, name, description or class matches. Codes whose number begins with word come
// first.
func search(word string) []xid.Code {
	found := xid.Search(word)
	for _, c := range xid.All() {
		known := slices.ContainsFunc(found, func(f xid.Code) bool { return f.Number == c.Number })
		if !known && strings.Contains(c.Class, strings.ToLower(word)) {
			found = append(found, c)
		}
	}
	byNumber := func(c xid.Code) bool { return strings.HasPrefix(strconv.Itoa(c.Number), word) }
	sorting.Func(found, func(a, b xid.Code) int {
		if byNumber(a) != byNumber(b) {
			if byNumber(a) {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Number, b.Number)
	})
	return found
}

func searchSXids(word string) []xid.SXid {
	word = strings.ToLower(word)
	var found []xid.SXid
	for _, s := range xid.SXids() {
		text := strings.ToLower(fmt.Sprintf("%s %s %s", sxidClass, s.Severity, s.Body))
		if strings.HasPrefix(sxidName(s), word) || strings.HasPrefix(strconv.Itoa(s.Number), word) ||
			strings.Contains(text, word) {
			found = append(found, s)
		}
	}
	return found
}

// sxidClass is the class of NVSwitch errors. The catalog assigns classes only to XIDs.
const sxidClass = "link"

func sxidName(s xid.SXid) string { return fmt.Sprintf("sxid:%d", s.Number) }

func (l catalog) names() []string {
	var names []string
	for _, c := range l.Items {
		names = append(names, fmt.Sprintf("xid/%d", c.Number))
	}
	for _, s := range l.SXids {
		names = append(names, fmt.Sprintf("sxid/%d", s.Number))
	}
	return names
}

func (l catalog) table(format printer.Format) *printer.Table {
	table := &printer.Table{
		Header: []string{"XID", "CLASS", "NVIDIA-ACTION", "NVSENTINEL", "DESCRIPTION"}, NoHeader: format.NoHeader,
	}
	if format.IsWide() {
		table.Header = []string{
			"XID", "NAME", "CLASS", "NVIDIA-ACTION", "NVSENTINEL", "GPUD", "EKS", "TEXT", "DESCRIPTION",
		}
	}
	for _, c := range l.Items {
		number, sentinel := fmt.Sprint(c.Number), c.Detectors[xid.IDNVSentinel].Action
		if format.IsWide() {
			table.Add(number, c.Name, c.Class, c.NVIDIA.Immediate, sentinel, c.Detectors[xid.IDGpud].Severity,
				c.Detectors[xid.IDEKS].Action, string(c.Template.Evidence), c.Description)
		} else {
			table.Add(number, c.Class, c.NVIDIA.Immediate, sentinel, c.Description)
		}
	}
	for _, s := range l.SXids {
		number := sxidName(s)
		if format.IsWide() {
			table.Add(number, "", sxidClass, "", "", "", "", string(s.Evidence), string(s.Severity)+", "+s.Body)
		} else {
			table.Add(number, sxidClass, "", "", string(s.Severity)+", "+s.Body)
		}
	}
	return table
}

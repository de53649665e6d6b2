package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// leftoverList is the output of `leftovers -o json`.
type leftoverList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Complete reports whether everything could be checked.
	Complete bool               `json:"complete"`
	Skipped  []leftover.Skipped `json:"skipped,omitempty"`
	Items    []leftoverItem     `json:"items"`
}

type leftoverItem struct {
	leftover.Leftover
	// Result is the result of --clean: deleted, edited, removed, gone, failed or left.
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// leftoversReport prints the leftovers and the results of their removal.
type leftoversReport struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	format     printer.Format
	now        time.Time
	found      *leftover.Found
	items      []leftover.Leftover
	unseen     []leftover.Skipped // nodes
	results    []leftover.Result
}

// warn prints a warning about what was not checked.
func (r *leftoversReport) warn(looked []string) {
	for _, s := range slices.Concat(r.found.Skipped, r.unseen) {
		text := fmt.Sprintf("not checked: %s: %s", s.What, s.Why)
		if len(s.Namespaces) > 0 {
			text += "; only namespaces " + strings.Join(s.Namespaces, ", ") + " were checked"
		}
		printer.Talk(r.streams.ErrOut, "Warning: %s", printer.Clean(text))
	}
	if len(r.found.Skipped) > 0 {
		printer.Talk(r.streams.ErrOut, "%s", r.connection.Grant(""))
	}
	for _, namespace := range r.found.Unmarked {
		printer.Talk(r.streams.ErrOut, "Warning: ignored records: %v",
			&ledger.UnmarkedError{Namespace: namespace})
	}
	var others []string
	for _, node := range r.found.Nodes {
		if !slices.Contains(looked, node) {
			others = append(others, node)
		}
	}
	if len(others) > 0 {
		printer.Talk(r.streams.ErrOut,
			"not checked: files on %s, where runs ended without a complete revert; to check them, add --node %s",
			strings.Join(others, ", "), strings.Join(others, ","))
	}
}

// print prints the leftovers. It returns the verdict if --clean is not specified or if there are no leftovers.
func (r *leftoversReport) print() error {
	if err := r.write(); err != nil {
		return err
	}
	if len(r.items) > 0 {
		return &usage.Verdict{}
	}
	skipped := len(r.found.Skipped) + len(r.unseen)
	switch {
	case skipped > 0:
		return fmt.Errorf("nothing found, but %s could not be checked", count.Of(skipped, "kind"))
	default:
		printer.Talk(r.streams.ErrOut, "nothing found%s", r.left())
	}
	return nil
}

// left describes how many of this tool's objects are not leftovers.
func (r *leftoversReport) left() string {
	if r.found.InUse == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of active runs remain in place: see kubectl gpu-fault "+
		"list", count.Of(r.found.InUse, "object"))
}

func (r *leftoversReport) write() error {
	if r.format.IsTable() {
		if len(r.items) == 0 {
			return nil
		}
		return leftoverTable(r.items, r.format, r.now).Write(r.streams.Out)
	}
	list := leftoverList{
		APIVersion: ledger.APIVersion, Kind: "LeftoverList", Skipped: slices.Concat(r.found.Skipped, r.unseen),
		Items: []leftoverItem{},
	}
	list.Complete = len(list.Skipped) == 0
	var names []string
	for _, l := range r.items {
		item := leftoverItem{Leftover: l}
		if i := slices.IndexFunc(
			r.results, func(result leftover.Result) bool { return same(result.Leftover, l) },
		); i >= 0 {
			item.Result = r.results[i].Did
			if r.results[i].Err != nil {
				item.Result, item.Error = "failed", r.results[i].Err.Error()
			}
		} else if r.results != nil {
			item.Result = "left"
		}
		list.Items = append(list.Items, item)
		names = append(names, l.Ref())
	}
	return r.format.Object(r.streams.Out, list, names...)
}

func same(a, b leftover.Leftover) bool {
	return a.Ref() == b.Ref() && a.Namespace == b.Namespace && a.Of == b.Of
}

func leftoverTable(items []leftover.Leftover, format printer.Format, now time.Time) *printer.Table {
	t := &printer.Table{
		Header: []string{"NAMESPACE", "KIND/NAME", "OF", "SINCE", "WHAT", "CLEAN"}, NoHeader: format.NoHeader,
	}
	for _, l := range items {
		of := string(l.Of)
		if l.Of == leftover.Ours {
			of = cmp.Or(l.Run, of)
		}
		since := "<unknown>" // as in kubectl's AGE column
		if !l.Since.IsZero() {
			since = duration.HumanDuration(now.Sub(l.Since))
		}
		t.Add(cmp.Or(l.Namespace, printer.Blank), l.Ref(), of, since, what(l, format.IsWide()), remedy(l))
	}
	return t
}

// what returns the WHAT cell: at most three parts, or all parts if wide is true.
func what(l leftover.Leftover, wide bool) string {
	const shown = 2
	parts := slices.Clone(l.What)
	if !wide && len(parts) > shown+1 {
		parts = append(parts[:shown:shown], fmt.Sprintf("%d more", len(parts)-shown))
	}
	if len(l.With) > 0 {
		with := count.Of(len(l.With), "object") + " with it"
		if wide {
			with = "with " + strings.Join(l.With, " ")
		}
		parts = append(parts, with)
	}
	if wide {
		parts = append(parts, l.Doubts...)
	}
	return strings.Join(parts, ", ")
}

// remedy returns the CLEAN cell.
func remedy(l leftover.Leftover) string {
	switch l.Remedy {
	case leftover.Delete:
		return "delete it"
	case leftover.Edit:
		return "remove this"
	case leftover.OnNode:
		return "remove it on the node"
	default:
		return l.Todo
	}
}

// plan prints what --clean will do.
func (r *leftoversReport) plan() {
	// stdout is reserved for the results.
	if err := leftoverTable(r.items, r.format, r.now).Write(r.streams.ErrOut); err != nil {
		return
	}
	for _, l := range r.items {
		for _, doubt := range l.Doubts {
			printer.Talk(r.streams.ErrOut, "%s: not changed: %s", within(l), printer.Clean(doubt))
		}
	}
}

func (r *leftoversReport) removable() int {
	n := 0
	for _, l := range r.items {
		if l.Remedy != leftover.Nobody {
			n++
		}
	}
	return n
}

func (r *leftoversReport) dryRun() error {
	if !r.format.IsTable() {
		if err := r.write(); err != nil {
			return err
		}
		return &usage.Verdict{}
	}
	for _, l := range r.items {
		did := map[leftover.Remedy]string{
			leftover.Delete: leftover.DidDelete, leftover.Edit: leftover.DidEdit, leftover.OnNode: didRemove,
		}[l.Remedy]
		if did != "" {
			fmt.Fprintf(r.streams.Out, "%s (client dry run)\n", printer.Clean(sentence(l, did)))
		}
	}
	return &usage.Verdict{}
}

// didRemove is the result of a leftover that was removed from a node.
const didRemove = "removed"

// done records a result and prints it in kubectl's style.
func (r *leftoversReport) done(result leftover.Result) {
	r.results = append(r.results, result)
	switch {
	case result.Err != nil:
		printer.Talk(r.streams.ErrOut, "Warning: %s was not removed: %s", within(result.Leftover),
			printer.Clean(r.explain(result).Error()))
	case r.format.IsTable():
		fmt.Fprintln(r.streams.Out, printer.Clean(sentence(result.Leftover, result.Did)))
	}
	if result.Did == leftover.DidEdit && len(result.With) > 0 {
		printer.Talk(r.streams.ErrOut, "%s: running pods are affected until they are recreated: %s",
			within(result.Leftover),
			printer.Clean(strings.Join(result.With, " ")))
	}
}

// explain returns the reason why a leftover could not be removed. No role printed by `rbac print` allows deleting other
// users' objects in all namespaces.
func (r *leftoversReport) explain(result leftover.Result) error {
	err := kube.Explain(result.Err)
	switch {
	case !apierrors.IsForbidden(err):
		return err
	case result.Node != "":
		return r.connection.Explain(err)
	default:
		return fmt.Errorf("%w; --clean requires administrator permissions", err)
	}
}

// sentence returns a result such as "configmap/x deleted from namespace a".
func sentence(l leftover.Leftover, did string) string {
	text := l.Ref() + " " + did
	switch {
	case l.Namespace == "":
		return text
	case did == leftover.DidDelete:
		return text + " from namespace " + l.Namespace
	default:
		return text + " in namespace " + l.Namespace
	}
}

func within(l leftover.Leftover) string {
	if l.Namespace == "" {
		return printer.Clean(l.Ref())
	}
	return printer.Clean(l.Ref() + " in namespace " + l.Namespace)
}

// end returns the verdict after --clean.
func (r *leftoversReport) end(ctx context.Context) error {
	if !r.format.IsTable() {
		if err := r.write(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("not everything was removed: %w", context.Cause(ctx))
	}
	left := 0
	for _, result := range r.results {
		if result.Err != nil {
			left++
		}
	}
	for _, l := range r.items {
		if l.Remedy == leftover.Nobody {
			left++
			printer.Talk(r.streams.ErrOut, "%s was not removed: %s", within(l), printer.Clean(l.Todo))
		}
	}
	if left > 0 {
		return &usage.Verdict{Message: fmt.Sprintf("%d of %s not removed", left, count.Of(len(r.items), "leftover"))}
	}
	if skipped := len(r.found.Skipped) + len(r.unseen); skipped > 0 {
		printer.Talk(r.streams.ErrOut, "all leftovers found were removed, but %s could not be checked",
			count.Of(skipped, "kind"))
	}
	return nil
}

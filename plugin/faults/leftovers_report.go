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

// leftoverList is what `leftovers -o json` prints.
type leftoverList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Complete reports whether everything that was asked for could be looked at.
	Complete bool               `json:"complete"`
	Skipped  []leftover.Skipped `json:"skipped,omitempty"`
	Items    []leftoverItem     `json:"items"`
}

type leftoverItem struct {
	leftover.Leftover
	// Result is what --clean did: deleted, edited, removed, gone, failed, left.
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// leftoversReport says what was found, and what became of it.
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

// warn says what was not looked at.
func (r *leftoversReport) warn(looked []string) {
	for _, s := range slices.Concat(r.found.Skipped, r.unseen) {
		text := fmt.Sprintf("not looked at: %s: %s", s.What, s.Why)
		if len(s.Namespaces) > 0 {
			text += "; only namespaces " + strings.Join(s.Namespaces, ", ") + " were"
		}
		printer.Talk(r.streams.ErrOut, "Warning: %s", printer.Clean(text))
	}
	if len(r.found.Skipped) > 0 {
		printer.Talk(r.streams.ErrOut, "%s", r.connection.Grant())
	}
	for _, namespace := range r.found.Unmarked {
		printer.Talk(r.streams.ErrOut, "Warning: the records in it are left out: %v",
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
			"not looked at: files on %s, where runs did not end with everything put back; add --node %s",
			strings.Join(others, ", "), strings.Join(others, ","))
	}
}

// print is for a look without --clean, and for one that found nothing.
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
		return fmt.Errorf("nothing found, but %s could not be read, so nobody knows", count.Of(skipped, "kind"))
	default:
		printer.Talk(r.streams.ErrOut, "nothing found%s", r.left())
	}
	return nil
}

// left returns what is ours and no leftover.
func (r *leftoversReport) left() string {
	if r.found.InUse == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of runs that are in place: kubectl gpu-fault list", count.Of(r.found.InUse, "object"))
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
		since := "<unknown>" // as kubectl has it for ages
		if !l.Since.IsZero() {
			since = duration.HumanDuration(now.Sub(l.Since))
		}
		t.Add(cmp.Or(l.Namespace, printer.Blank), l.Ref(), of, since, what(l, format.IsWide()), remedy(l))
	}
	return t
}

// what names two things, or with wide all of them.
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

// remedy returns the column CLEAN.
func remedy(l leftover.Leftover) string {
	switch l.Remedy {
	case leftover.Delete:
		return "delete it"
	case leftover.Edit:
		return "take this out"
	case leftover.OnNode:
		return "remove it on the node"
	default:
		return l.Todo
	}
}

// plan says what --clean will do.
func (r *leftoversReport) plan() {
	// What is shown is for people: stdout is for what was done.
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

// didRemove is what happens to things on nodes.
const didRemove = "removed"

// done tells of each change as it is made, as kubectl does.
func (r *leftoversReport) done(result leftover.Result) {
	r.results = append(r.results, result)
	switch {
	case result.Err != nil:
		printer.Talk(r.streams.ErrOut, "Warning: %s is still there: %s", within(result.Leftover),
			printer.Clean(r.explain(result).Error()))
	case r.format.IsTable():
		fmt.Fprintln(r.streams.Out, printer.Clean(sentence(result.Leftover, result.Did)))
	}
	if result.Did == leftover.DidEdit && len(result.With) > 0 {
		printer.Talk(r.streams.ErrOut, "%s: what runs with it goes when it is made anew: %s", within(result.Leftover),
			printer.Clean(strings.Join(result.With, " ")))
	}
}

// explain returns why a leftover could not be removed. No role of `rbac print` lets one delete objects of others in all
// namespaces.
func (r *leftoversReport) explain(result leftover.Result) error {
	err := kube.Explain(result.Err)
	switch {
	case !apierrors.IsForbidden(err):
		return err
	case result.Node != "":
		return r.connection.Explain(err)
	default:
		return fmt.Errorf("%w; --clean requires the rights of an administrator", err)
	}
}

// sentence is "configmap/x deleted from namespace a".
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
			printer.Talk(r.streams.ErrOut, "%s is left: %s", within(l), printer.Clean(l.Todo))
		}
	}
	if left > 0 {
		return &usage.Verdict{Message: fmt.Sprintf("%d of %s still there", left, count.Of(len(r.items), "leftover"))}
	}
	if skipped := len(r.found.Skipped) + len(r.unseen); skipped > 0 {
		printer.Talk(r.streams.ErrOut, "all that was found is removed, but %s could not be read",
			count.Of(skipped, "kind"))
	}
	return nil
}

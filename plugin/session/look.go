package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// Look reads nodes through debug pods, without a run. It changes nothing.
type Look struct {
	Cluster         *kube.Cluster
	LedgerNamespace string
	Pods            podflags.Flags
	ErrOut          io.Writer
	Name            string // part of the names of the pods
	Reading         string // progress message while read is running
}

// At calls read with a debug pod on a node, and always deletes the pod.
func (l Look) At(ctx context.Context, nodeName string, read func(*debugpod.Session) error) (err error) {
	store := ledger.New(l.Cluster.Client, l.LedgerNamespace)
	id, err := store.NewID(l.Name)
	if err != nil {
		return err
	}
	spec := l.Pods.Spec(id, nodeName, l.LedgerNamespace)
	if err := fault.CheckNamespaceAccess(ctx, l.Cluster.Client, spec.Namespace); err != nil {
		return err
	}
	if err := l.Pods.Try(ctx, l.Cluster, spec); err != nil {
		return err
	}
	report := progress.New(l.ErrOut)
	report.Note(l.Pods.Announcement(l.LedgerNamespace, []string{nodeName}))
	created, err := store.EnsureNamespace(ctx)
	if created {
		report.Note(fmt.Sprintf(
			"namespace %s was created for the pod and is kept for later use; to remove it: kubectl delete namespace %s",
			store.Namespace, store.Namespace,
		))
	}
	if err != nil {
		return err
	}
	pod, err := l.Pods.Start(ctx, l.Cluster, spec, func(text string) { report.Step(nodeName, text) })
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, pod.Close(ctx))
		report.Step(nodeName, closing(err))
	}()
	report.Step(nodeName, l.Reading)
	err = read(pod)
	if ctx.Err() != nil { // the result may be incomplete
		return context.Cause(ctx)
	}
	return err
}

func closing(err error) string {
	if err != nil {
		return "failed"
	}
	return "read; debug pod deleted"
}

// NoteRuns lists the runs that broke a node on purpose, so that users revert them instead of fixing the node manually.
func NoteRuns(ctx context.Context, cluster *kube.Cluster, ledgerNamespace, nodeName string, errOut io.Writer) {
	store := ledger.New(cluster.Client, ledgerNamespace)
	open, err := store.List(ctx, ledger.Active)
	if err != nil {
		return // the note is optional
	}
	for _, run := range open.Runs {
		if slices.ContainsFunc(run.Pending(), func(step ledger.Step) bool {
			return step.Target.Kind == "Node" && step.Target.Name == nodeName
		}) {
			printer.Talk(errOut, "Note: node %s was broken on purpose by run %s (%s, by %s); to restore it: %s",
				nodeName, run.ID, run.Summary, cmp.Or(run.By, "an unknown user"), store.Command("revert", run.ID))
		}
	}
}

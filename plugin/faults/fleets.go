package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func fleetClient(store *ledger.Store) *fleet.Client {
	return &fleet.Client{Kube: store.Client, Namespace: store.Namespace}
}

// findFleet returns the runs of a fleet. A fleet without runs and without a Job does not exist.
func (f *revertFlags) findFleet(
	ctx context.Context, store *ledger.Store, id string,
) (runs []ledger.Run, unreadable, err error) {
	found, err := store.FleetRuns(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	exists, err := fleetClient(store).Exists(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if !exists && len(found.Runs)+len(found.Unreadable) == 0 {
		return nil, &ledger.NotFoundError{ID: id, Namespace: store.Namespace}, nil
	}
	for _, bad := range found.Unreadable {
		unreadable = errors.Join(unreadable,
			fmt.Errorf("record %s of fleet %s cannot be read: %w", bad.Name, id, bad.Err))
	}
	if exists {
		f.fleets = append(f.fleets, id)
	}
	return found.Runs, unreadable, nil
}

// mostOfFleet is the maximum number of runs of a fleet that the preview describes. All of them make the same change, on
// different nodes.
const mostOfFleet = 2

// previewAll describes what will be stopped and reverted.
func (f *revertFlags) previewAll(
	ctx context.Context, s *fault.Session, streams genericiooptions.IOStreams, runs []ledger.Run,
) {
	for _, id := range f.fleets {
		printer.Talk(streams.ErrOut, "%s: deleting the Job; its pods will undo their changes", id)
	}
	seen := map[string]int{}
	for _, run := range runs {
		if seen[run.Fleet]++; run.Fleet == "" || seen[run.Fleet] <= mostOfFleet {
			printer.Talk(streams.ErrOut, "%s", f.preview(ctx, s, run))
		}
	}
	for _, merged := range fleet.Fold(runs) {
		if more := seen[merged.Fleet] - mostOfFleet; merged.Fleet != "" && more > 0 {
			printer.Talk(streams.ErrOut, "%s: and %s", merged.ID, count.Of(more, "more run"))
		}
	}
}

// stopFleets stops the Jobs of the fleets and waits until their pods have terminated, so that no pod continues a run
// that is being reverted. The error lists the runs that started after the preview, because the user has not confirmed
// their steps.
func (f *revertFlags) stopFleets(
	ctx context.Context, s *fault.Session, streams genericiooptions.IOStreams, shown []ledger.Run,
) error {
	var errs []error
	for _, id := range f.fleets {
		printer.Talk(streams.ErrOut, "stopping fleet %s", id)
		if err := fleetClient(s.Ledger).Stop(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		now, err := s.Ledger.FleetRuns(ctx, id)
		errs = append(errs, err)
		for _, run := range now.Runs {
			isShown := func(before ledger.Run) bool { return before.ID == run.ID }
			if !run.IsClosed() && !slices.ContainsFunc(shown, isShown) {
				errs = append(errs, fmt.Errorf("run %s started after the runs were shown: repeat the command", run.ID))
			}
		}
	}
	return errors.Join(errs...)
}

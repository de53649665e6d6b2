package ledger

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// FleetAccount is the service account of the Jobs that inject a fault into a fleet.
const FleetAccount = "gpu-fault-fleet"

// fleetKind is the first part of a fleet ID, where run IDs have the kind of fault.
const fleetKind = "fleet"

// fleetID matches the IDs of fleets.
var fleetID = regexp.MustCompile(`^` + fleetKind + `-[` + idAlphabet + `]{6}$`)

// NewFleetID returns an ID for a new fleet.
func (s *Store) NewFleetID() (string, error) { return s.NewID(fleetKind) }

// IsFleet reports whether an ID is a fleet ID.
func IsFleet(id string) bool { return fleetID.MatchString(id) }

// FleetRun returns the ID of the run that injects the fault into a shard of the fleet. A replacement pod uses the same
// ID, and therefore finds its predecessor's record.
func FleetRun(fleet string, shard int) string { return fmt.Sprintf("%s-%d", fleet, shard) }

// FleetRuns returns the runs of a fleet, including closed ones, in the order of their shards. The error is an
// *UnmarkedError if the namespace is not marked as a ledger.
func (s *Store) FleetRuns(ctx context.Context, fleet string) (Listing, error) {
	if err := s.CheckNamespace(ctx); err != nil {
		return Listing{}, err
	}
	found, err := s.records(ctx, All, "of fleet "+fleet, LabelFleet+"="+fleet)
	if err != nil {
		return Listing{}, err
	}
	// Any client can set the label on a record, but the ID of an unrelated run does not match the ID of the fleet.
	found.Runs = slices.DeleteFunc(found.Runs, func(run Run) bool {
		shard, ofFleet := strings.CutPrefix(run.ID, fleet+"-")
		n, err := strconv.Atoi(shard)
		return run.Fleet != fleet || !ofFleet || err != nil || run.ID != FleetRun(fleet, n)
	})
	sorting.Func(found.Runs, CompareShards)
	return found, nil
}

// CompareShards orders the runs of a fleet by their shards.
func CompareShards(a, b Run) int {
	return cmp.Or(len(a.ID)-len(b.ID), cmp.Compare(a.ID, b.ID)) // sorts 2 before 10
}

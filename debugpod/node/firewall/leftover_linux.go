package firewall

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// Left returns the tables and queueing disciplines that runs have left behind. If clean is set, it removes them, except
// for those of the runs in keep.
func Left(host hostfs.Host, clean bool, keep []string) []deadman.Leftover {
	filter, err := openNetfilterOf(host)
	if errors.Is(err, errNoFilter) {
		return nil
	}
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = filter.close() }()
	tables, err := filter.marked()
	if err != nil {
		return unreadable(err)
	}
	var found []deadman.Leftover
	for table, of := range tables {
		left := deadman.Leftover{Kind: deadman.LeftoverFirewall, Path: "nftables inet " + table, Run: of.run}
		if clean && !slices.Contains(keep, of.run) {
			switch removed, failure := removeAll(of.run, api.RemoveFirewall{}, filter); {
			case failure != nil:
				left.Problem = failure.Message
			case len(removed.Left) > 0:
				left.Problem = "other programs have added " + strings.Join(removed.Left, ", ") + " to the table"
			default:
				left.Removed = true
			}
		}
		found = append(found, left)
	}
	return append(found, filter.leftQdiscs(tables, clean, keep)...)
}

func unreadable(err error) []deadman.Leftover {
	return []deadman.Leftover{{
		Kind: deadman.LeftoverFirewall, Path: "nftables", Problem: "could not check: " + err.Error(),
	}}
}

// leftQdiscs returns the queueing disciplines of runs whose tables no longer exist. The queueing disciplines do not
// contain the run names.
func (n *netfilter) leftQdiscs(tables map[string]mark, clean bool, keep []string) (found []deadman.Leftover) {
	conn, err := n.traffic()
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = conn.Close() }()
	qdiscs, err := ownQdiscs(conn)
	if err != nil {
		return unreadable(err)
	}
	handles := map[uint16]bool{} // handles of qdiscs without a table
	for _, q := range qdiscs {
		handles[uint16(q.handle>>16)] = true
	}
	for _, of := range tables {
		delete(handles, api.QdiscHandle(of.run))
	}
	for _, handle := range slices.Sorted(maps.Keys(handles)) {
		left := deadman.Leftover{Kind: deadman.LeftoverFirewall, Path: fmt.Sprintf("qdisc %x:", handle)}
		inUse := slices.ContainsFunc(keep, func(run string) bool { return api.QdiscHandle(run) == handle })
		if clean && !inUse {
			_, err := n.removeQdiscs(func(h uint16) bool { return h == handle })
			left.Removed = err == nil
			if err != nil {
				left.Problem = err.Error()
			}
		}
		found = append(found, left)
	}
	return found
}

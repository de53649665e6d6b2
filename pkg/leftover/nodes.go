package leftover

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// dynamoMarker is the directory on a node that switches Dynamo's library on and off.
const dynamoMarker = "cuda-fault-test"

// OnNode checks what the helper found on a node against the ledger. Items of runs whose changes may be in place are not
// leftovers. Items of an overdue run are cleaned together with its fault.
func (f *Found) OnNode(node string, things []deadman.Leftover) []Leftover {
	var items []Leftover
	for _, thing := range things {
		l := Leftover{Kind: thing.Kind, Name: thing.Path, Node: node, Of: Ours, Run: thing.Run, Remedy: OnNode}
		if thing.Kind == deadman.LeftoverForeign {
			l.Of, l.What = Foreign, []string{"left by another fault injector"}
			if path.Base(thing.Path) == dynamoMarker {
				l.Of, l.What = Dynamo, []string{"switch for the CUDA library"}
			}
			items = append(items, l)
			continue
		}
		l.What = []string{describe(thing)}
		if thing.Problem != "" {
			l.What = append(l.What, thing.Problem)
		}
		if thing.Status != nil {
			l.Since = thing.Status.Time.UTC()
		}
		known := f.runs.of(thing.Run)
		if thing.Run == "" {
			known = knownRun{standing: closed} // no run: a prepared file that was never used
		}
		switch known.standing {
		case inUse:
			f.InUse++
			continue
		case overdue:
			continue
		}
		l.judge(known)
		items = append(items, l)
	}
	return items
}

func describe(thing deadman.Leftover) string {
	switch thing.Kind {
	case deadman.LeftoverRecord:
		if thing.Status != nil && thing.Status.Phase != "" {
			text := fmt.Sprintf("record of changed files, %s", thing.Status.Phase)
			if !thing.Status.Until.IsZero() {
				text += ", until " + thing.Status.Until.UTC().Format(time.RFC3339)
			}
			return text
		}
		return "record of changed files"
	case deadman.LeftoverBootUnit:
		return "unit that restores files when the node boots"
	case deadman.LeftoverDeadMan:
		return "process that restores files"
	case deadman.LeftoverPrepared:
		return "prepared file that is not used"
	case deadman.LeftoverModule:
		return "kernel module that writes driver log lines"
	case deadman.LeftoverFirewall:
		return "firewall rules, which drop nothing after the run expires"
	case deadman.LeftoverDevices:
		if thing.Ended {
			return "record of devices that were reported as unhealthy; the fault has ended"
		}
		return "devices that are reported as unhealthy until the fault expires"
	}
	return thing.Kind
}

// Keep returns the runs whose items on the node the helper must preserve: all except those that have certainly ended.
func (f *Found) Keep(things []deadman.Leftover) []string {
	var ids []string
	for id, known := range f.runs.byID {
		if known.standing != closed {
			ids = append(ids, id)
		}
	}
	for _, thing := range things {
		if thing.Run != "" && f.runs.of(thing.Run).standing == unknown {
			ids = append(ids, thing.Run)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

package leftover

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// isOfFleet reports whether an object of this tool is the Job of a fleet, or its plan. The records of a fleet's runs
// are those of ordinary runs.
func isOfFleet(o metav1.Object) bool {
	return isOurs(o) && !isRecord(o) && ledger.IsFleet(o.GetLabels()[ledger.LabelFleet])
}

// fleetJob handles the Job of a fleet. A client deletes the Job when it exits, so a finished Job was left behind by a
// client that was killed. While the Job is running, it is in use even if its client has died. The Job owns its plan.
func (s *search) fleetJob(k kind, o *unstructured.Unstructured) {
	if !isOver(k, o) {
		s.inUse++
		return
	}
	left := leftoverOf(k.resource, k.name, o, Ours, fmt.Sprintf("finished Job of fleet %s, whose client was lost",
		o.GetName()))
	left.Remedy, left.Todo = Nobody, ledger.New(nil, o.GetNamespace()).Command("revert", o.GetName())
	s.items = append(s.items, left)
}

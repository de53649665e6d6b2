package fault_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

// A fault that is armed twice is told of twice.
func TestArmingIsAnnouncedEachTime(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	run, err := c.Run(t.Context(), c.plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	for i, reason := range []string{fault.ReasonArmed, fault.ReasonDisarmed, fault.ReasonArmed} {
		c.later(time.Duration(i+1)*time.Second).Announce(t.Context(), *run, run.Steps[0].ID, reason)
	}
	c.Announce(t.Context(), *run, "nosuch", fault.ReasonArmed)
	var told []string
	for _, e := range w.state(t).events {
		if e.Reason != fault.ReasonInjected {
			told = append(told, e.Type+" "+e.Reason)
			if !strings.Contains(e.Message, run.ID) || e.InvolvedObject.Name != "gpu-1" {
				t.Errorf("%+v", e)
			}
		}
	}
	if got := strings.Join(sorted(told),
		", "); got != "Normal GPUFaultDisarmed, Warning GPUFaultArmed, Warning GPUFaultArmed" {
		t.Error(got)
	}
}

//go:build e2e && scenario

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// Of what the scenarios break doctor has exactly one root, the right one, for those who know of no run; and the run itself for those who do.
func TestDoctorFindsWhatScenariosBreak(t *testing.T) {
	rows := []struct{ scenario, variant, root string }{
		{"blocked-egress", "draw=dns", "net.policy"},
		{"blocked-egress", "draw=port", "net.policy"},
		{"blocked-egress", "draw=label", "net.policy"},
		{"blocked-egress", "draw=server", "net.policy"},
		{"blocked-egress", "draw=pull", "img.pull-auth"},
		{"cpu-mode", "hides=variable", "wl.cpu-mode"},
		{"cpu-mode", "hides=file", "wl.cpu-mode"},
		{"cpu-mode", "hides=argument", "wl.cpu-mode"},
		// The pods run and use their GPUs: who scrapes them, and who prints what, is none of doctor's business.
		{"dark-monitoring", "how=selector", ""},
		{"gpu-lost", "kind=gone", "wl.cpu-mode"}, // CUDA's own words: no CUDA-capable device is detected
		{"gpu-lost", "kind=busy", "wl.cuda-error"},
		{"gpu-memory", "via=env", "wl.cuda-oom"},
		{"gpu-resources", "kind=count", "sched.bigger-than-any-node"},
		{"gpu-resources", "kind=product", "sched.node-selector"},
		{"gpu-resources", "kind=name", "sched.wrong-resource-name"},
		{"gpu-resources", "kind=pool", "sched.taint"},
		{"gpu-resources", "kind=quota", "rbac.quota"},
		{"noop", "", ""},
		{"runtime-handler", "how=wrong-instance", "rt.wrong-instance"},
		{"runtime-handler", "how=missing-handler", "rt.handler-missing"},
		{"runtime-handler", "how=class", "rt.handler-missing"},
		{"unbalanced-nodes", "how=selector", "sched.unbalanced"},
		{"wrong-architecture", "", "wl.exec-format"},
		// There is no GPU pod: what should make one may not, and runs.
		{"wrong-role-binding", "how=role", ""},
		// What fails is a second root: the line was written by a program, which lets no process fail.
		{"xid-79", "kind=ends", "hw.gpu-lost wl.cpu-mode"},
	}
	c := cluster.Require(t)
	c.Addons(t)
	c.Trainer(t)
	matrix := []string{fmt.Sprintf("%-20s %-20s %-28s %s", "SCENARIO", "VARIANT", "ROOT, UNKNOWN RUN", "ROOT, KNOWN RUN")}
	for _, row := range rows {
		_, value, _ := strings.Cut(row.variant, "=")
		t.Run(strings.TrimSpace(row.scenario+" "+value), func(t *testing.T) {
			p := newPatient(t)
			p.control.RestartNPD(t)
			start := []string{"scenario", "start", row.scenario, "--seed", "3", "--yes", "--allow-control-plane", "--allow-majority", "--allow-last-gpu-node", "-o", "json"}
			if row.variant != "" {
				start = append(start, "--set", row.variant)
			}
			var exercise struct{ ID string }
			p.decode(p.ok(start...).stdout, &exercise)
			t.Cleanup(func() {
				if t.Failed() { // so that the next one finds its namespace free
					p.plugin("scenario", "end", exercise.ID, "--yes")
				}
			})
			// What is young may be about to start: doctor waits for half a minute before it calls that an error.
			blind := ""
			cluster.Eventually(t, 90*time.Second, "doctor, who knows of no run, has root "+row.root, func() (bool, string) {
				report := p.ask("--ignore-injected", "--all-gpu-nodes")
				blind = roots(report)
				return blind == row.root, blind + "\n" + describe(report)
			})
			knowing := p.ask("--all-gpu-nodes")
			if got := roots(knowing); got != "fault.injected" {
				t.Errorf("for those who know of the run the roots are %q:\n%s", got, describe(knowing))
			}
			matrix = append(matrix, fmt.Sprintf("%-20s %-20s %-28s %s", row.scenario, row.variant, blind, roots(knowing)))
			p.ok("scenario", "end", exercise.ID, "--yes")
			for _, node := range p.cluster.Nodes() {
				node.RestartNPD(t) // its conditions outlive the XIDs
			}
			healed := p.ask("--all-gpu-nodes")
			if got := roots(healed); got != "" {
				t.Errorf("after the end the roots are %q:\n%s", got, describe(healed))
			}
		})
	}
	t.Log("\n" + strings.Join(matrix, "\n"))
}

//go:build e2e && scenario

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// variant is one way in which a scenario breaks the cluster, as --set has it, and the roots that doctor finds then.
type variant struct{ set, roots string }

func TestDoctorFindsScenarioBlockedEgress(t *testing.T) {
	findsWhatBreaks(t, "blocked-egress",
		variant{"draw=dns", "net.policy"},
		variant{"draw=port", "net.policy"},
		variant{"draw=label", "net.policy"},
		variant{"draw=server", "net.policy"},
		variant{"draw=pull", "img.pull-auth"},
	)
}

// The rule is in the node's kernel, where doctor does not look: it names what the rule breaks.
func TestDoctorFindsScenarioBlockedEgressNode(t *testing.T) {
	findsWhatBreaks(t, "blocked-egress-node",
		variant{"draw=pull", "img.pull-network"},
		variant{"draw=requests", ""}, // the first container waits, and says nothing
	)
}

func TestDoctorFindsScenarioCPUMode(t *testing.T) {
	findsWhatBreaks(t, "cpu-mode",
		variant{"hides=variable", "wl.cpu-mode"},
		variant{"hides=file", "wl.cpu-mode"},
		variant{"hides=argument", "wl.cpu-mode"},
		variant{"hides=script", "wl.cpu-mode"}, // of PyTorch: its log names the device
	)
}

// The pods run and use their GPUs. Which Service scrapes them is not doctor's business.
func TestDoctorFindsScenarioDarkMonitoring(t *testing.T) {
	findsWhatBreaks(t, "dark-monitoring",
		variant{"how=selector", ""},
		variant{"how=settings", ""},
		variant{"how=exporter", ""},
	)
}

// Which of the pods that hold GPUs could do without, doctor cannot know.
func TestDoctorFindsScenarioGangDeadlock(t *testing.T) {
	findsWhatBreaks(t, "gang-deadlock",
		variant{"via=together", "sched.all-in-use"},
		variant{"via=project", "sched.all-in-use"},
		variant{"via=quota", "rbac.quota"},
	)
}

func TestDoctorFindsScenarioDeadGPU(t *testing.T) {
	findsWhatBreaks(t, "dead-gpu",
		variant{"cause=name", "dp.unhealthy"},
		variant{"cause=half", "dp.unhealthy"},
	)
}

func TestDoctorFindsScenarioDriverMismatch(t *testing.T) {
	findsWhatBreaks(t, "driver-mismatch",
		variant{"cause=env", "wl.cuda-error"},
		variant{"cause=old", "wl.cuda-error"},
		variant{"cause=upgraded", "wl.cuda-error"},
	)
}

func TestDoctorFindsScenarioFabricManager(t *testing.T) {
	findsWhatBreaks(t, "fabric-manager",
		variant{"cause=excluded", "fab.fabricmanager"},
		variant{"cause=version", "fab.fabricmanager"},
	)
}

func TestDoctorFindsScenarioGPULost(t *testing.T) {
	findsWhatBreaks(t, "gpu-lost",
		variant{"kind=gone", "wl.cpu-mode"}, // CUDA's own words: no CUDA-capable device is detected
		variant{"kind=busy", "wl.cuda-error"},
	)
}

func TestDoctorFindsScenarioGPUMemory(t *testing.T) {
	findsWhatBreaks(t, "gpu-memory", variant{"via=env", "wl.cuda-oom"})
}

func TestDoctorFindsScenarioGPUResources(t *testing.T) {
	findsWhatBreaks(t, "gpu-resources",
		variant{"kind=count", "sched.bigger-than-any-node"},
		variant{"kind=product", "sched.node-selector"},
		variant{"kind=name", "sched.wrong-resource-name"},
		variant{"kind=pool", "sched.taint"},
		variant{"kind=quota", "rbac.quota"},
		variant{"kind=request", "wl.cpu-mode"}, // it runs, without a GPU
		variant{"kind=general", "wl.cpu-mode"},
	)
}

// The label nvidia.com/mig.strategy of the other node decides what doctor calls it.
func TestDoctorFindsScenarioMIGLayout(t *testing.T) {
	findsWhatBreaks(t, "mig-layout", variant{"draw=profile", "mig.strategy-mismatch"})
}

func TestDoctorFindsScenarioNoop(t *testing.T) {
	findsWhatBreaks(t, "noop", variant{"", ""})
}

// A program wrote the lines, which make no process fail: the process that fails is another root.
func TestDoctorFindsScenarioRowRemapping(t *testing.T) {
	findsWhatBreaks(t, "row-remapping", variant{"cause=pending", "hw.ecc wl.cuda-error"})
}

func TestDoctorFindsScenarioRuntimeHandler(t *testing.T) {
	findsWhatBreaks(t, "runtime-handler",
		variant{"how=wrong-instance", "rt.wrong-instance"},
		variant{"how=missing-handler", "rt.handler-missing"},
		variant{"how=class", "rt.handler-missing"},
	)
}

func TestDoctorFindsScenarioShmTooSmall(t *testing.T) {
	findsWhatBreaks(t, "shm-too-small",
		variant{"via=default", "wl.shm"},
		variant{"via=path", "wl.shm"},
		variant{"via=size", "wl.shm"},
		variant{"via=memory", "wl.oom-killed"},
	)
}

// The ranks that wait report an error. A rank that hangs, or that does not exist, does not.
func TestDoctorFindsScenarioSlowRank(t *testing.T) {
	findsWhatBreaks(t, "slow-rank",
		variant{"via=cpu", "wl.pod-failing wl.pod-failing"},
		variant{"via=gpu", ""},
		variant{"via=size", ""},
	)
}

func TestDoctorFindsScenarioUnbalancedNodes(t *testing.T) {
	findsWhatBreaks(t, "unbalanced-nodes", variant{"how=selector", "sched.unbalanced"})
}

// A DaemonSet that wants no node is no error, and what waits for it has started.
func TestDoctorFindsScenarioValidatorDeadlock(t *testing.T) {
	findsWhatBreaks(t, "validator-deadlock", variant{"draw=selector", ""})
}

func TestDoctorFindsScenarioWrongArchitecture(t *testing.T) {
	findsWhatBreaks(t, "wrong-architecture", variant{"", "wl.exec-format"})
}

// As in wrong-role-binding.
func TestDoctorFindsScenarioWrongClusterRoleBinding(t *testing.T) {
	findsWhatBreaks(t, "wrong-cluster-role-binding", variant{"how=namespace", ""})
}

// No GPU pod exists: the program that creates it runs, but lacks the right to.
func TestDoctorFindsScenarioWrongRoleBinding(t *testing.T) {
	findsWhatBreaks(t, "wrong-role-binding", variant{"how=role", ""})
}

// The process that fails is a second root: a program wrote the line, which makes no process fail.
func TestDoctorFindsScenarioXID79(t *testing.T) {
	findsWhatBreaks(t, "xid-79", variant{"kind=ends", "hw.gpu-lost wl.cpu-mode"})
}

// findsWhatBreaks holds that doctor finds exactly one root in what a scenario breaks, the right one, for users who do
// not know of the run; the run itself for those who do; and nothing after its end.
func findsWhatBreaks(t *testing.T, scenario string, variants ...variant) {
	t.Helper()
	c := cluster.Require(t)
	c.Addons(t)
	c.Trainer(t)
	for _, v := range variants {
		_, value, _ := strings.Cut(v.set, "=")
		t.Run(strings.TrimSpace(scenario+" "+value), func(t *testing.T) {
			p := newPatient(t)
			p.control.RestartNPD(t)
			start := []string{
				"scenario", "start", scenario, "--seed", "3", "--yes", "--allow-control-plane", "--allow-majority",
				"--allow-last-gpu-node", "-o", "json",
			}
			if v.set != "" {
				start = append(start, "--set", v.set)
			}
			var exercise struct{ ID string }
			p.decode(p.ok(start...).stdout, &exercise)
			t.Cleanup(func() {
				if t.Failed() { // the next variant needs the namespace
					p.plugin("scenario", "end", exercise.ID, "--yes")
				}
			})
			// A young pod may be about to start: doctor waits for half a minute before it calls that an error.
			cluster.Eventually(t, 90*time.Second, fmt.Sprintf("doctor, not knowing of the run, finds %q", v.roots),
				func() (bool, string) {
					report := p.ask("--ignore-injected", "--all-gpu-nodes")
					return roots(report) == v.roots, roots(report) + "\n" + describe(report)
				})
			knowing := p.ask("--all-gpu-nodes")
			if got := roots(knowing); got != "fault.injected" {
				t.Errorf("doctor, knowing of the run, finds %q, want fault.injected:\n%s", got, describe(knowing))
			}
			p.ok("scenario", "end", exercise.ID, "--yes")
			for _, node := range p.cluster.Nodes() {
				node.RestartNPD(t) // its conditions outlive the XIDs
			}
			healed := p.ask("--all-gpu-nodes")
			if got := roots(healed); got != "" {
				t.Errorf("after the end, doctor finds %q:\n%s", got, describe(healed))
			}
		})
	}
}

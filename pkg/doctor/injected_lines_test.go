package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

const ourXID79 = "kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."

// closedXID returns a run that wrote a line on gpu-1 ten minutes ago and was reverted a minute later.
func closedXID() snapshot.Run {
	return snapshot.Run{
		ID: "xid-1", Fault: "xid", Summary: "XID 79 on GPU 0", By: "alice", Phase: "Reverted",
		Created: hwNow.Add(-10 * time.Minute), Closed: hwNow.Add(-9 * time.Minute),
		Revert: "kubectl gpu-fault revert xid-1",
		Targets: []snapshot.Target{{Kind: "Node", Name: "gpu-1", Permanent: true,
			Evidence: []snapshot.RunEvidence{
				{Source: "/dev/kmsg sequence 812", Time: hwNow.Add(-10 * time.Minute), Text: ourXID79},
			}}},
	}
}

func quotes(ago time.Duration, text string) corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: "GPUXid", Status: corev1.ConditionTrue, Reason: "XidFatal", Message: text,
		LastTransitionTime: metav1.NewTime(hwNow.Add(-ago)),
	}
}

// TestLinesOfRunsThatAreOver verifies that a line from a closed run, and a node condition that still quotes it, are
// attributed to the run: they are neither GPU errors nor foreign lines, and doctor does not recommend draining the
// node. Lines from the driver or other programs are not attributed to the run.
func TestLinesOfRunsThatAreOver(t *testing.T) {
	t.Parallel()
	line := func(sequence uint64, priority int, text string) api.KernelRecord {
		return api.KernelRecord{
			Sequence: sequence, Priority: priority, Text: text, Uptime: time.Hour, Time: hwNow.Add(-10 * time.Minute),
		}
	}
	ours := line(812, 12, ourXID79)
	for name, test := range map[string]struct {
		log       []api.KernelRecord // nil: the node was not read
		condition *corev1.NodeCondition
		options   Options
		want      string // findings: ID and severity
	}{
		"the line":                {log: []api.KernelRecord{ours}, want: "fault.recorded info"},
		"the line of an exercise": {log: []api.KernelRecord{ours}, want: "fault.recorded info"},
		"the line, nobody knows of it": {
			log: []api.KernelRecord{ours}, options: Options{IgnoreInjected: true}, want: "hw.gpu-lost warning",
		},
		"somebody else's line": {
			log: []api.KernelRecord{ours, line(900, 12, ourXID79)}, want: "fault.recorded info, hw.gpu-lost warning",
		},
		"the driver's line": {
			log:  []api.KernelRecord{ours, line(900, 4, strings.TrimPrefix(ourXID79, "kernel: "))},
			want: "fault.recorded info, hw.gpu-lost warning",
		},
		"a condition quotes it": {
			log: []api.KernelRecord{ours}, condition: new(quotes(10*time.Minute, ourXID79)),
			want: "fault.recorded info, node.condition warning",
		},
		"a condition, node not read": {
			condition: new(quotes(10*time.Minute, ourXID79)), want: "node.condition warning",
		},
		"a condition, lines left out": {
			log: []api.KernelRecord{ours}, condition: new(quotes(10*time.Minute, ourXID79)),
			options: Options{Since: time.Minute}, want: "node.condition warning",
		},
		"a condition of before": {condition: new(quotes(time.Hour, ourXID79)), want: "hw.gpu-lost error"},
		"a condition of another code": {
			condition: new(quotes(time.Minute, strings.Replace(ourXID79, "79", "62", 1))), want: "hw.xid-recent error",
		},
		"a condition of another GPU": {
			condition: new(quotes(time.Minute, strings.Replace(ourXID79, ":17:", ":3d:", 1))),
			want:      "hw.gpu-lost error",
		},
		"a condition, and another's line": {log: []api.KernelRecord{ours, line(900, 12, ourXID79)},
			condition: new(quotes(time.Minute, ourXID79)),
			want:      "fault.recorded info, hw.gpu-lost warning"},
		"a condition, nobody knows of the run": {
			condition: new(quotes(time.Minute, ourXID79)), options: Options{IgnoreInjected: true},
			want: "hw.gpu-lost error",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var host *api.Diagnosis
			if test.log != nil {
				host = hwHost()
				host.KernelLog = test.log
				host.Probe.Time = hwNow
			}
			s := hwSnapshot(host)
			s.Runs = []snapshot.Run{closedXID()}
			if strings.HasSuffix(name, "exercise") {
				s.Runs[0].Fault = finding.AsScenario
			}
			if test.condition != nil {
				s.Nodes[0].Status.Conditions = append(s.Nodes[0].Status.Conditions, *test.condition)
			}
			test.options.Checks = []string{"hw.gpu-lost", "hw.xid-recent", "fault.*", "node.condition"}
			report := Examine(s, test.options)
			var found []string
			for _, f := range report.Items {
				if f.Root {
					found = append(found, f.ID+" "+string(f.Severity))
				}
			}
			slices.Sort(found)
			if got := strings.Join(found, ", "); got != test.want {
				t.Fatalf("the roots are %s, want %s:\n%s", got, test.want, reportLines(report))
			}
			for _, f := range report.Items {
				fix := f.Fix.Text + strings.Join(f.Fix.Commands, " ")
				switch {
				case f.ID == "fault.recorded" && (f.Object.Name != "xid-1" ||
					!strings.Contains(f.Evidence[len(f.Evidence)-1].Source, "sequence 812") || f.Fix.Commands != nil):
					t.Errorf("the run's line is told as %+v", f)
				case f.ID == "node.condition" && f.Root && (strings.Contains(fix, "drain") ||
					!strings.Contains(fix, "restart node-problem-detector") || !strings.Contains(fix, "xid-1")):
					t.Errorf("a condition of ours is to be mended with %s", fix)
				}
			}
		})
	}
}

// TestTitlesOfWrittenLines verifies that a line that a program wrote is not attributed to the driver, and is not an
// error by itself.
func TestTitlesOfWrittenLines(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"62, 1, 2, 3", "48, pid=1, DBE", "74, NVLink", "119, GSP", "64, row", "79, GPU has fallen off the bus.",
	} {
		host := hwHost()
		host.KernelLog = []api.KernelRecord{
			{Sequence: 812, Uptime: time.Hour, Priority: 12, Text: "kernel: NVRM: Xid (PCI:0000:17:00): " + text},
		}
		report := Examine(hwSnapshot(host), Options{Checks: hwChecks()})
		if len(report.Items) == 0 {
			t.Errorf("XID %s is not told", text)
		}
		for _, f := range report.Items {
			if f.Severity == finding.Error || strings.Contains(f.Title, "the driver reports") ||
				!strings.HasPrefix(f.Title, "the kernel log reports XID ") {
				t.Errorf("XID %s is a stranger's line, and told as %s: %s", text, f.Severity, f.Title)
			}
		}
	}
}

// TestOurPodDoesNotStart verifies that a node on which this tool's pod does not start is reported with the messages
// from the kubelet and the runtime.
func TestOurPodDoesNotStart(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]finding.Severity{
		"the debug pod did not run in time: ContainerCreating": finding.Warning,
		"the debug pod did not run in time: ContainerCreating (events: FailedCreatePodSandBox: rpc error: code = Unavailable desc = containerd.sock: connection refused)": finding.Error,
	} {
		s := hwSnapshot(nil)
		s.Missing = []snapshot.Missing{{What: "nodes/gpu-1", Why: "not read", NotStarted: said}}
		f := hwFinding(t, Examine(s, Options{}), "rt.not-ready")
		if !f.Root || f.Severity != want || f.Object.Name != "gpu-1" || f.Evidence[0].Text != said {
			t.Errorf("%q is told as %+v", said, f)
		}
	}
	s := hwSnapshot(nil)
	s.Missing = []snapshot.Missing{{What: "nodes/gpu-1", Why: "not read: no right to"}}
	if report := Examine(s, Options{Checks: []string{"rt.not-ready"}}); len(report.Items) > 0 {
		t.Errorf("a node that was not read for other reasons is told:\n%s", reportLines(report))
	}
}

// TestConditionOfAGPUThatAnswers verifies that a condition is not treated like the kernel log, and that doctor does not
// recommend a power cycle for a GPU that responds.
func TestConditionOfAGPUThatAnswers(t *testing.T) {
	t.Parallel()
	s := hwSnapshot(hwHost())
	s.Nodes[0].Status.Conditions = append(s.Nodes[0].Status.Conditions, quotes(time.Hour, "NvidiaXID79Error"))
	s.Hosts["gpu-1"].KernelLog = nil
	f := hwFinding(t, Examine(s, Options{Checks: hwChecks()}), "hw.gpu-lost")
	fix := f.Fix.Text + strings.Join(f.Fix.Commands, " ")
	if f.Severity != finding.Warning || strings.Contains(f.Title, "kernel log") ||
		strings.Contains(fix, "kubectl drain") ||
		strings.Contains(fix, "power-cycle") {
		t.Errorf("%s: %s\n%s", f.Severity, f.Title, fix)
	}
}

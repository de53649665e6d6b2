package doctor

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// crashLooping returns a cluster with one GPU node and one GPU pod that crashes with this log.
func crashLooping(log string) *snapshot.Snapshot {
	gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	ended := metav1.NewTime(toldAt().Add(-time.Minute))
	failed := &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: ended}
	return &snapshot.Snapshot{
		Meta: snapshot.Meta{Created: toldAt()},
		Nodes: []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"nvidia.com/gpu.present": "true"}},
			Status: corev1.NodeStatus{
				Capacity: gpu, Allocatable: gpu,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: "train-0", CreationTimestamp: metav1.NewTime(toldAt().Add(-time.Hour)),
			},
			Spec: corev1.PodSpec{NodeName: "gpu-1", Containers: []corev1.Container{{
				Name: "main", Image: "app:1", Resources: corev1.ResourceRequirements{Limits: gpu},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", RestartCount: 7, LastTerminationState: corev1.ContainerState{Terminated: failed},
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			}}},
		}},
		Logs: []snapshot.Log{{Namespace: "team", Pod: "train-0", Container: "main", Previous: true, Text: log}},
	}
}

func rootOf(t *testing.T, s *snapshot.Snapshot, o Options, id string) finding.Finding {
	t.Helper()
	report := Examine(s, o)
	for _, f := range report.Roots() {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no root cause %s:\n%s", id, describe(report))
	return finding.Finding{}
}

// TestUnknownCauseIsSaid verifies that an unknown message is quoted, and that the cause is reported as unknown.
func TestUnknownCauseIsSaid(t *testing.T) {
	t.Parallel()
	f := rootOf(t, crashLooping("starting\nframblesnatz could not be opened\nbye\n"), Options{}, "wl.pod-failing")
	if !strings.Contains(f.Title, "framblesnatz could not be opened") || !strings.Contains(f.Cause, "unknown") ||
		f.Confidence == finding.Certain || f.Signature != "" {
		t.Errorf("the finding is %+v", f)
	}
}

// TestSignatureNamesTheSymptom verifies that the user's signatures work like the built-in ones and take precedence.
// Values are quoted for the shell.
func TestSignatureNamesTheSymptom(t *testing.T) {
	t.Parallel()
	own, err := signatures.Parse("own.yaml", []byte(`signatures:
- id: framblesnatz-missing
  match: '(\S+) could not be opened'
  layer: workload
  title: the file {1} is missing
  cause: The pod {namespace}/{pod} needs it.
  confidence: likely
  fix: Mount {1}.
  commands: ['kubectl -n {namespace} exec {pod} -c {container} -- ls', 'ls {1}']
  platforms: {talos: {fix: Mount it on Talos.}}
  example: x could not be opened
`))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Signatures: own}
	f := rootOf(t, crashLooping("$(evil);x could not be opened\n"), o, "wl.pod-failing")
	if f.Signature != "framblesnatz-missing" || f.Title != "the file $(evil);x is missing" ||
		f.Cause != "The pod team/train-0 needs it." || f.Confidence != finding.Likely {
		t.Errorf("the finding is %+v", f)
	}
	if got := strings.Join(f.Fix.Commands[:2], "\n"); !strings.HasPrefix(
		got, "kubectl -n team debug train-0 -it --copy-to=train-0-debug --container=main -- ls\nssh gpu-1 ",
	) || !strings.Contains(got, `'\''$(evil);x'\''`) {
		t.Errorf("the commands are\n%s", got)
	}
	s := crashLooping("x could not be opened\n")
	s.Nodes[0].Status.NodeInfo.OSImage = "Talos (v1.11.0)"
	if f := rootOf(t, s, o, "wl.pod-failing"); f.Fix.Text != "Mount it on Talos." {
		t.Errorf("the fix on Talos is %q", f.Fix.Text)
	}
}

// TestTalosHasNoShell verifies that no command in a fix requires a shell on a platform without one.
func TestTalosHasNoShell(t *testing.T) {
	t.Parallel()
	own, err := signatures.Parse("own.yaml", []byte(`signatures:
- {id: a, match: boom, layer: driver, title: t, cause: c., confidence: likely, fix: Do it., example: boom,
   commands: ['sudo journalctl -u kubelet -n 50', 'sudo apt-get install x']}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := crashLooping("boom\n")
	s.Nodes[0].Status.NodeInfo.OSImage = "Talos (v1.11.0)"
	f := rootOf(t, s, Options{Signatures: own}, "wl.pod-failing")
	for _, command := range f.Fix.Commands {
		if strings.HasPrefix(command, "ssh ") || strings.Contains(command, "apt-get") {
			t.Errorf("a command for Talos: %s", command)
		}
	}
	if f.Fix.Commands[0] != "talosctl -n gpu-1 logs kubelet" || !strings.Contains(f.Fix.Text, "Talos has no shell") {
		t.Errorf("the fix is %+v", f.Fix)
	}
}

// TestUsersLogHidesNoNode verifies that a message that names a root cause does not hide a problem with a node if it is
// in the log of a user's pod, because users choose what their pods print.
func TestUsersLogHidesNoNode(t *testing.T) {
	t.Parallel()
	own, err := signatures.Parse("own.yaml", []byte(`signatures:
- {id: a, match: boom, decisive: true, layer: workload, title: t, cause: c., confidence: likely, fix: Do it.,
   example: boom}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := crashLooping("boom\n")
	s.Hosts = map[string]*api.Diagnosis{"gpu-1": {Probe: api.Probe{
		Modules: []api.Module{{Name: "mlx5_core"}}, Driver: api.DriverFiles{Kernels: []string{"6.8.0"}},
		PCI: []api.PCIDevice{{Address: "0000:17:00.0", Class: "0x030200", Device: "0x2330", ConfigReadable: true}},
	}}}
	rootOf(t, s, Options{Signatures: own}, "drv.not-loaded")
}

// TestWhatIsOnItsWayIsNoFailure verifies that a node whose driver is being upgraded, or a pod that is waiting for its
// gang, is not a failure while the change is in progress.
func TestWhatIsOnItsWayIsNoFailure(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]finding.Severity{
		"pod-restart-required": finding.Info, "upgrade-done": finding.Error,
	} {
		s := crashLooping("")
		s.Pods = nil
		s.Nodes[0].Labels["nvidia.com/gpu-driver-upgrade-state"] = label
		s.Nodes[0].CreationTimestamp = metav1.NewTime(toldAt().Add(-24 * time.Hour))
		s.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
		found := false
		for _, f := range Examine(s, Options{}).Items {
			if f.ID == "dp.none" {
				found = true
				if f.Severity != want {
					t.Errorf("%s: the severity is %s, want %s", label, f.Severity, want)
				}
			}
		}
		if !found {
			t.Errorf("%s: nothing is said of a node without a device plugin", label)
		}
	}
}

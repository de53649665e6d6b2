package doctor

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestStartErrorsWithoutTheNode verifies that the runtime's messages identify the root cause even if the node was not
// read. The fix recommends reading the node.
func TestStartErrorsWithoutTheNode(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`failed to get sandbox runtime: no runtime for "nvidia" is configured`:                   "rt.handler-missing",
		`unable to get OCI runtime for sandbox "0f3a": no runtime for "nvidia" is configured`:    "rt.handler-missing",
		`RuntimeHandler "nvidia" not supported`:                                                  "rt.handler-missing",
		`failed to find runtime handler nvidia from runtime list map[crun:0xc0001 runc:0xc0002]`: "rt.handler-missing",
		modeEvents[containerd.ModeBinaryMissing]:                                                 "rt.binary-missing",
		`failed to start sandbox "1f": ` + modeEvents[containerd.ModeBinaryMissing]:              "rt.binary-missing",
		modeEvents[containerd.ModeWrongRuntimeType]:                                              "rt.runtime-type",
		`OCI runtime create failed: runc create failed: expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "/k8s.io/1" instead: unknown`:                                             "rt.cgroup-driver",
		`failed to create TTRPC connection: dial unix Yunix:///run/containerd/s/1f: connect: connection refused`:                                                                                                    "rt.shim-skew",
		`failed to inject CDI devices: unresolvable CDI devices management.nvidia.com/gpu=all`:                                                                                                                      "cdi.unresolvable",
		`failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open x/log.json: no such file or directory): exec: "nvidia-oci": executable file not found in $PATH: unknown`: "rt.binary-missing",
		`something that nobody has ever seen`: "rt.sandbox-failed",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			report := Examine(failsToStart(gpuCluster(api.Runtime{}), sandboxError+message), Options{})
			if got := runtimeRoots(report); got != want {
				t.Fatalf("%s\nthe roots are %q, want %s:\n%s", message, got, want, reportLines(report))
			}
			root := report.Roots()[0]
			if !strings.Contains(root.Evidence[0].Text, message) {
				t.Errorf("the runtime's words are not quoted: %+v", root.Evidence)
			}
			if want == "rt.handler-missing" &&
				!slices.Contains(root.Fix.Commands, "kubectl gpu-fault doctor --node gpu-1") {
				t.Errorf("the fix does not say to read the node: %+v", root.Fix)
			}
		})
	}
}

// TestStartErrorsOfPodsThatStarted verifies that old messages about a pod that has since started are not evidence.
func TestStartErrorsOfPodsThatStarted(t *testing.T) {
	t.Parallel()
	message := sandboxError + `failed to get sandbox runtime: no runtime for "nvidia" is configured`
	for name, change := range map[string]func(*corev1.Pod){
		"it is ready": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning,
				[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		},
		"it has ended": func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
		"its sandbox is there": func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := failsToStart(gpuCluster(api.Runtime{}), message)
			change(&s.Pods[len(s.Pods)-1])
			if report := Examine(s, Options{Checks: []string{"rt.*"}}); runtimeRoots(report) != "" {
				t.Errorf("the roots are %q:\n%s", runtimeRoots(report), reportLines(report))
			}
		})
	}
}

// wrongInstance returns the cluster from the thread k8s-snap#1991: the kubelet uses the snap's containerd, and the
// toolkit edits the other one.
func wrongInstance(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	plain := "version = 3\nimports = ['/var/lib/k8s-containerd/k8s-containerd/etc/containerd/containerd.d/*.toml']\n"
	own := configOf(t, "2.1.4", snapConfig, plain)
	instance := instanceOf(own, daemonWith(own))
	instance.Socket, instance.Unit = snapSocket, "snap.k8s.containerd.service"
	other := configOf(t, "2.1.4", rootConfig, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n",
		"/etc/containerd/conf.d/99-nvidia.toml", nvidiaDropIn)
	decoy := *instanceOf(other, daemonWith(other))
	decoy.PID = 60
	s := gpuCluster(api.Runtime{
		Kubelet: api.Kubelet{
			PID: 100, Endpoint: "unix://" + snapSocket, EndpointFrom: "/var/snap/k8s/common/args/kubelet",
		},
		Instance: instance, Decoys: []api.Instance{decoy},
	})
	return failsToStart(s, sandboxError+`failed to get sandbox runtime: no runtime for "nvidia" is configured`)
}

// TestWrongInstanceFix verifies that the fix contains all four variables, the user's existing variables, the release's
// own version, and the correct unit.
func TestWrongInstanceFix(t *testing.T) {
	t.Parallel()
	policy := unstructured.Unstructured{Object: map[string]any{
		"kind": "ClusterPolicy", "metadata": map[string]any{"name": "cluster-policy"},
		"status": map[string]any{"state": "ready"},
		"spec":   map[string]any{"toolkit": map[string]any{"env": []any{map[string]any{"name": "MINE", "value": "1"}}}},
	}}
	for name, test := range map[string]struct {
		change func(*snapshot.Snapshot)
		want   []string
	}{
		"Helm": {func(s *snapshot.Snapshot) {
			s.HelmReleases = []snapshot.HelmRelease{{
				Namespace: "gpu-operator", Name: "gpu-operator-1758", Chart: "gpu-operator", ChartVersion: "v25.10.1",
				Status: "deployed",
				Values: map[string]any{"toolkit": map[string]any{"env": []any{
					map[string]any{"name": "MINE", "value": "1"},
					map[string]any{"name": "CONTAINERD_SOCKET", "value": "/old"},
				}}},
			}}
			s.ClusterPolicies = []unstructured.Unstructured{policy}
		}, []string{
			"helm upgrade gpu-operator-1758 gpu-operator --repo https://helm.ngc.nvidia.com/nvidia -n gpu-operator --version v25.10.1 " +
				"--reuse-values -f values.yaml",
			"- name: MINE\n    value: \"1\"\n", "- name: CONTAINERD_CONFIG\n    value: " + snapConfig,
			"- name: CONTAINERD_SOCKET\n    value: " +
				"" + snapSocket,
			"- name: RUNTIME_DROP_IN_CONFIG\n    value: /var/lib/k8s-containerd/k8s-containerd/etc/containerd/containerd.d/99-nvidia.toml",
			"- name: RUNTIME_CONFIG_SOURCE\n    value: file=" + snapConfig, "restarts snap.k8s.containerd.service",
		}},
		"a ClusterPolicy without Helm": {
			func(s *snapshot.Snapshot) { s.ClusterPolicies = []unstructured.Unstructured{policy} },
			[]string{
				"kubectl patch clusterpolicy cluster-policy --type merge --patch-file patch.yaml", "name: MINE",
				"name: CONTAINERD_CONFIG",
			},
		},
		"no operator": {
			func(*snapshot.Snapshot) {},
			[]string{"nvidia-ctk runtime configure " +
				"--runtime=containerd", "--config=" + snapConfig, "/containerd.d/99-nvidia.toml",
				"systemctl restart snap.k8s.containerd.service"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := wrongInstance(t)
			test.change(s)
			report := Examine(s, Options{Checks: []string{"rt.*", "rc.*", "wl.pod-failing"}})
			if got := runtimeRoots(report); got != "rt.wrong-instance" {
				t.Fatalf("the roots are %q:\n%s", got, reportLines(report))
			}
			fix := report.Roots()[0].Fix
			all := fix.Text + "\n" + strings.Join(fix.Commands, "\n") + "\n" + fix.Values
			for _, want := range test.want {
				if !strings.Contains(strings.ToLower(all), strings.ToLower(want)) {
					t.Errorf("the fix has no %q:\n%s", want, all)
				}
			}
			if strings.Contains(all, "/old") || strings.Count(fix.Values, "CONTAINERD_SOCKET") > 1 {
				t.Errorf("the old value is still there:\n%s", all)
			}
		})
	}
}

func FuzzRecognize(f *testing.F) {
	for _, message := range modeEvents {
		f.Add(message)
	}
	f.Add(`unresolvable CDI devices nvidia.com/gpu=0`)
	f.Fuzz(func(t *testing.T, text string) {
		id, name := facts.Recognize(text)
		if id == "" && name != "" || len(name) > len(text) {
			t.Errorf("%q: %q names %q", text, id, name)
		}
	})
}

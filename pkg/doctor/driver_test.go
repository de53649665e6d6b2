package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// hwPod returns a component's pod on gpu-1 that is an hour old and not ready, with a log.
func hwPod(s *snapshot.Snapshot, name, app, log string) *corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "gpu-operator", Name: name, Labels: map[string]string{"app": app},
		CreationTimestamp: metav1.NewTime(hwNow.Add(-time.Hour)),
	}}
	pod.Spec.NodeName = "gpu-1"
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "nvcr.io/nvidia/" + app + ":1"}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 7,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	s.Pods = append(s.Pods, pod)
	if log != "" {
		s.Logs = append(s.Logs, snapshot.Log{Namespace: pod.Namespace, Pod: name, Container: "main", Text: log})
	}
	return &s.Pods[len(s.Pods)-1]
}

// hwNoDriver returns a node on which no part of the driver is loaded.
func hwNoDriver() *api.Diagnosis {
	d := hwHost()
	d.SMI, d.Info.DriverVersion, d.KernelLog = "", "", nil
	d.Probe.SMIError =
		"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
	d.Probe.Modules, d.Probe.Devices, d.Probe.Processes, d.Probe.Driver.Kernel = []api.Module{{Name: "mlx5_core"}},
		nil, nil, ""
	for i := range d.Probe.PCI {
		d.Probe.PCI[i].Driver = ""
	}
	return d
}

// TestDriverFaults verifies that each driver fault is the only root cause on a node whose driver comes from the host.
func TestDriverFaults(t *testing.T) {
	t.Parallel()
	switches := func(d *api.Diagnosis) {
		d.Probe.PCI = append(d.Probe.PCI, api.PCIDevice{
			Address: "0000:c1:00.0", Class: "0x068000", Device: "0x22a3", Driver: "nvidia-nvswitch",
			ConfigReadable: true,
		})
	}
	for _, test := range []struct {
		name   string
		host   *api.Diagnosis
		change func(*api.Diagnosis)
		want   []string
		title  string // a part of the root's
		fix    string // a part of its fix or commands
	}{
		{
			"not loaded", hwNoDriver(), func(d *api.Diagnosis) { d.Probe.Driver.Built = nil },
			[]string{"drv.not-loaded error"}, "no NVIDIA driver", "linux-headers-6.8.0-60-generic",
		},
		{"built for another kernel", hwNoDriver(), func(d *api.Diagnosis) {
			d.Probe.Driver.Built = []string{"/lib/modules/6.8.0-58-generic/updates/dkms/nvidia.ko.zst"}
		}, []string{"drv.not-loaded error"}, "not built for the running kernel", "Ubuntu 24.04.2 LTS"},
		{
			"not loaded on a Red Hat", hwNoDriver(),
			func(d *api.Diagnosis) { d.Probe.OS = map[string]string{"ID": "rhel", "PRETTY_NAME": "RHEL 9.4"} },
			[]string{"drv.not-loaded error"}, "", "kernel-devel-6.8.0-60-generic",
		},
		{
			"all GPUs are given to virtual machines", hwNoDriver(),
			func(d *api.Diagnosis) { d.Probe.PCI[0].Driver, d.Probe.PCI[1].Driver = "vfio-pci", "vfio-pci" }, nil, "",
			"",
		},
		{"nouveau has them", hwNoDriver(), func(d *api.Diagnosis) {
			d.Probe.PCI[0].Driver, d.Probe.PCI[1].Driver = "nouveau", "nouveau"
			d.Probe.Modules = append(d.Probe.Modules, api.Module{Name: "nouveau"})
		}, []string{"drv.nouveau error"}, "", "update-initramfs -u"},
		{
			"nova has them", hwNoDriver(), func(d *api.Diagnosis) { d.Probe.PCI[0].Driver = "NovaCore" },
			[]string{"drv.nouveau error"}, "nova_core", "blacklist nova_core",
		},
		{
			"nouveau is loaded and has nothing", hwHost(),
			func(d *api.Diagnosis) { d.Probe.Modules = append(d.Probe.Modules, api.Module{Name: "nouveau"}) }, nil,
			"", "",
		},
		{"Secure Boot", hwNoDriver(), func(d *api.Diagnosis) {
			d.Probe.SecureBoot = "enabled"
			d.KernelLog = []api.KernelRecord{hwLine(1, "Loading of unsigned module is rejected")}
		}, []string{"drv.secureboot error"}, "", "mokutil"},
		{"Secure Boot, long over", hwHost(), func(d *api.Diagnosis) {
			d.KernelLog = append(d.KernelLog, hwLine(1, "Loading of unsigned module is rejected"))
		}, nil, "", ""},
		{"uvm", hwHost(), func(d *api.Diagnosis) {
			d.Probe.Modules = slices.Delete(d.Probe.Modules, 1, 2)
			d.Probe.Devices = d.Probe.Devices[:3]
		}, []string{"drv.uvm-missing warning"}, "nvidia_uvm, which CUDA needs", "nvidia-modprobe -u -c=0"},
		{
			"devices", hwHost(), func(d *api.Diagnosis) { d.Probe.Devices = d.Probe.Devices[3:] },
			[]string{"drv.devnodes warning"}, "", "nvidia-modprobe -c 0 -u",
		},
		{"libraries", hwHost(), func(d *api.Diagnosis) {
			d.SMI, d.Probe.SMIError = "",
				"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.105"
			d.Probe.Driver.Libraries = []string{
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08",
				"/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08",
			}
			d.KernelLog = append(d.KernelLog, hwLine(
				60,
				"NVRM: API mismatch: the client has the version 580.105.08, but\nNVRM: this kernel module has the version 580.95.05.",
			))
		}, []string{"drv.lib-mismatch error"}, "", "apt-mark hold"},
		{"libraries of two versions, one right", hwHost(), func(d *api.Diagnosis) {
			d.Probe.Driver.Libraries = append(d.Probe.Driver.Libraries, "/usr/lib/x86_64-linux-gnu/libcuda.so.570.10")
		}, nil, "", ""},
		{
			"no Fabric Manager", hwHost(), switches, []string{"fab.fabricmanager error"}, "is not running",
			"nvidia-fabricmanager-580='580.95.05-*'",
		},
		{"Fabric Manager of another version", hwHost(), func(d *api.Diagnosis) {
			switches(d)
			d.Probe.Processes["nv-fabricmanager"], d.Probe.FabricManager = []int{99}, "580.105.08"
		}, []string{"fab.fabricmanager error"}, "versions of the Fabric Manager", ""},
		{"Fabric Manager works", hwHost(), func(d *api.Diagnosis) {
			switches(d)
			d.Probe.Processes["nv-fabricmanager"], d.Probe.FabricManager = []int{99}, hwDriver
			d.SMI = hwXML(hwGPU("17", "state=Completed", "status=Success"),
				hwGPU("3d", "state=Completed", "status=Success"))
		}, nil, "", ""},
		{"fabric not set up", hwHost(), func(d *api.Diagnosis) {
			switches(d)
			d.Probe.Processes["nv-fabricmanager"], d.Probe.FabricManager = []int{99}, hwDriver
			d.SMI = hwXML(hwGPU("17", "state=In Progress", "status=N/A"), hwGPU("3d", "state=In Progress"))
		}, []string{"fab.fabricmanager error"}, "not configured", ""},
		{"nvidia-smi hangs", hwHost(), func(d *api.Diagnosis) {
			d.SMI, d.Probe.SMIError = "", "nvidia-smi did not answer within 20s, and was ended"
		}, []string{"drv.gsp warning"}, "does not return", ""},
		{"GPU too new", hwNoDriver(), func(d *api.Diagnosis) {
			d.KernelLog = []api.KernelRecord{hwLine(1,
				"NVRM: The NVIDIA GPU 0000:17:00.0 (PCI ID: 10de:2901)\nNVRM: installed in this system requires use of the NVIDIA open kernel modules.")}
		}, []string{"drv.unsupported-gpu error"}, "requires NVIDIA's open kernel modules", "open flavor of the driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.change(test.host)
			report := Examine(hwSnapshot(test.host), Options{Checks: hwChecks()})
			if got := hwRoots(report); !slices.Equal(got, test.want) {
				t.Fatalf("roots %v, want %v\n%+v", got, test.want, report.Items)
			}
			if len(test.want) == 0 {
				return
			}
			id, _, _ := strings.Cut(test.want[0], " ")
			f := hwFinding(t, report, id)
			if text := f.Fix.Text + "\n" + strings.Join(f.Fix.Commands, "\n"); !strings.Contains(f.Title, test.title) ||
				!strings.Contains(text, test.fix) {
				t.Errorf("title %q, want a part %q; fix %q, want a part %q", f.Title, test.title, text, test.fix)
			}
		})
	}
}

// TestDriverPods verifies that the log of a failing driver container identifies the fault, and that the unloaded driver
// and the failures of other operator pods are consequences.
func TestDriverPods(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, log, want string }{
		{"headers", "Resolving Linux kernel version...\nCould not resolve Linux kernel version\n", "drv.headers error"},
		{"headers of Ubuntu", "E: Unable to locate package linux-headers-6.8.0-60-generic\n", "drv.headers error"},
		{
			"build",
			"ERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when this kernel module was built against the wrong or improperly configured kernel sources\n",
			"drv.build-fail error",
		},
		{
			"Secure Boot", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n",
			"drv.secureboot error",
		},
		{
			"nouveau",
			"ERROR: The Nouveau kernel driver is currently in use by your system.\nERROR: Unable to load the kernel module 'nvidia.ko'.\n",
			"drv.nouveau error",
		},
		{
			"too old a driver",
			"NVRM: installed in this system is not supported by the\nERROR: Unable to load the kernel module 'nvidia.ko'.\n",
			"drv.unsupported-gpu error",
		},
		{
			"in use",
			"failed to uninstall nvidia driver components: failed to unload driver: resource temporarily unavailable\n",
			"drv.upgrade-stuck error",
		},
	} {
		host := hwNoDriver()
		host.Probe.Driver = api.DriverFiles{}
		s := hwSnapshot(host)
		hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", test.log)
		if got := strings.Join(hwRoots(Examine(s, Options{Checks: hwChecks()})), ", "); got != test.want {
			t.Errorf("%s: roots %q, want %q", test.name, got, test.want)
		}
		// With the full catalog and a validator that is waiting for the driver, there is still only one root cause.
		waiting := hwPod(s, "nvidia-operator-validator-x", "nvidia-operator-validator", "")
		waiting.Spec.InitContainers = []corev1.Container{{Name: "driver-validation"}}
		waiting.Status.ContainerStatuses = nil
		waiting.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: "driver-validation",
			State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(hwNow.Add(-time.Hour))},
			},
		}}
		report := Examine(s, Options{})
		if got := strings.Join(hwRoots(report), ", "); got != test.want {
			t.Errorf("%s: among all checks the roots are %q, want %q", test.name, got, test.want)
			for _, f := range report.Items {
				t.Logf("root %t %s %s %q caused by %v", f.Root, f.ID, f.Severity, f.Title, f.CausedBy)
			}
		}
		// The same log in a pod that works now is in the past.
		s.Pods[0].Status.Conditions[0].Status = corev1.ConditionTrue
		s.Hosts["gpu-1"] = hwHost()
		if got := hwRoots(Examine(s, Options{Checks: hwChecks()})); len(got) > 0 {
			t.Errorf("%s: the driver works, and still there are %v", test.name, got)
		}
	}
}

// TestDriverModuleKinds verifies that doctor recommends the kernel modules that the GPU supports.
func TestDriverModuleKinds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"installed in this system requires use of the NVIDIA open kernel modules": "driver.kernelModuleType=open",
		"installed in this system is not supported by open nvidia.ko":             "kernelModuleType=proprietary",
	} {
		host := hwNoDriver()
		host.Probe.Driver = api.DriverFiles{}
		s := hwSnapshot(host)
		hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", text+"\n")
		found := hwFinding(t, Examine(s, Options{Checks: []string{"drv.unsupported-gpu"}}), "drv.unsupported-gpu")
		if found.Signature == "" && !strings.Contains(found.Fix.Text, want) {
			t.Errorf("%q: the fix is %q, want %q", text, found.Fix.Text, want)
		}
	}
}

// TestStuckUpgradeDrainsNothing verifies that the fix for a driver that is in use first shows the pods, and does not
// drain all nodes.
func TestStuckUpgradeDrainsNothing(t *testing.T) {
	t.Parallel()
	host := hwNoDriver()
	s := hwSnapshot(host)
	s.ClusterPolicies = policyWith(map[string]any{"driver": map[string]any{"enabled": true}})
	hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", "failed to unload driver: in use\n")
	found := hwFinding(t, Examine(s, Options{Checks: []string{"drv.upgrade-stuck"}}), "drv.upgrade-stuck")
	all := strings.Join(found.Fix.Commands, "\n")
	if strings.Contains(all, "drain") || strings.Contains(all, "upgrade-required") {
		t.Errorf("the commands are\n%s", all)
	}
}

// TestDriverImage verifies that a driver image that does not exist is distinguished from an unreachable registry.
func TestDriverImage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`Back-off pulling image "nvcr.io/nvidia/driver:570.86-cos121": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image: nvcr.io/nvidia/driver:570.86-cos121: not found`: "drv.image-tag-missing error",
		`Back-off pulling image "nvcr.io/nvidia/driver:570.86-ubuntu22.04": ErrImagePull: dial tcp: lookup nvcr.io: no such host`:                                                                       "",
	} {
		s := hwSnapshot(nil)
		pod := hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", "")
		pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff", Message: message,
		}
		if got := strings.Join(hwRoots(Examine(s, Options{Checks: hwChecks()})), ", "); got != want {
			t.Errorf("%q gives %q, want %q", message, got, want)
		}
	}
}

// TestDriverImageOfMirror verifies that an image that a private registry lacks is not reported as unpublished.
func TestDriverImageOfMirror(t *testing.T) {
	t.Parallel()
	s := hwSnapshot(nil)
	pod := hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", "")
	pod.Status.ContainerStatuses[0].Image = "registry.local/nvidia/driver:570.86-ubuntu22.04"
	pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{
		Reason: "ErrImagePull", Message: "registry.local/nvidia/driver:570.86-ubuntu22.04: not found",
	}
	f := hwFinding(t, Examine(s, Options{Checks: []string{"drv.image-tag-missing"}}), "drv.image-tag-missing")
	if f.Signature == "" && !strings.Contains(f.Fix.Text, "Copy it there") {
		t.Errorf("the fix is %q", f.Fix.Text)
	}
}

// TestDriverUpgrade verifies that an upgrade state is reported as a problem only if it requires manual action.
func TestDriverUpgrade(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"upgrade-done": "", "": "", "drain-required": "", "upgrade-failed": "drv.upgrade-stuck error",
	} {
		s := hwSnapshot(hwHost())
		s.Nodes[0].Labels["nvidia.com/gpu-driver-upgrade-state"] = state
		if got := strings.Join(hwRoots(Examine(s, Options{Checks: hwChecks()})), ", "); got != want {
			t.Errorf("state %q gives %q, want %q", state, got, want)
		}
	}
	s := hwSnapshot(hwHost())
	s.Nodes[0].Labels["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-done"
	s.Nodes[0].Labels["nvidia.com/gpu.deploy.device-plugin"] = "paused-for-driver-upgrade"
	if got := hwRoots(Examine(s, Options{Checks: hwChecks()})); !slices.Equal(
		got, []string{"drv.upgrade-stuck warning"},
	) {
		t.Errorf("a part that stays paused gives %v", got)
	}
}

// TestDriverFixByOrigin verifies that the fix depends on whether the driver comes from the operator's container or from
// the host.
func TestDriverFixByOrigin(t *testing.T) {
	t.Parallel()
	s := hwSnapshot(hwNoDriver())
	s.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
		"metadata": map[string]any{"name": "cluster-policy"},
		"spec":     map[string]any{"driver": map[string]any{"enabled": true}},
	}}}
	if f := hwFinding(t, Examine(s, Options{Checks: hwChecks()}), "drv.not-loaded"); !strings.Contains(
		f.Fix.Text, "no driver pod runs on the node",
	) {
		t.Errorf("the operator is to install it, and the fix says %q", f.Fix.Text)
	}
	s.Nodes[0].Labels["nvidia.com/gpu.deploy.driver"] = "pre-installed"
	if f := hwFinding(t, Examine(s, Options{Checks: hwChecks()}), "drv.not-loaded"); !strings.Contains(
		f.Fix.Text, "6.8.0-60-generic",
	) {
		t.Errorf("the host has its own driver, and the fix says %q", f.Fix.Text)
	}
}

// TestDriverBeingInstalled verifies that no problem is reported while the operator's container builds the driver.
func TestDriverBeingInstalled(t *testing.T) {
	t.Parallel()
	s := hwSnapshot(hwNoDriver())
	pod := hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", "Building NVIDIA driver package\n")
	pod.CreationTimestamp = metav1.NewTime(hwNow.Add(-5 * time.Minute))
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{
		Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}
	if got := hwRoots(Examine(s, Options{Checks: hwChecks()})); len(got) > 0 {
		t.Errorf("a driver that is being installed gives %v", got)
	}
}

// TestDriverUnread verifies that a check that requires unread node data reports unknown, and does not consider missing
// data healthy.
func TestDriverUnread(t *testing.T) {
	t.Parallel()
	host := hwNoDriver()
	host.Probe.PCI, host.Probe.Modules, host.Probe.SMIError = nil, nil,
		"nvidia-smi was not found in the usual directories"
	host.Probe.Unread = map[string]string{
		"pci": "permission denied", "modules": "permission denied", "devices": "permission denied",
	}
	report := Examine(hwSnapshot(host), Options{Checks: hwChecks()})
	if got := hwRoots(report); len(got) > 0 {
		t.Errorf("nothing was read, and there are %v", got)
	}
	unknown := map[string]bool{}
	for _, u := range report.Unknown {
		unknown[u.Check] = true
	}
	for _, id := range []string{
		"drv.not-loaded", "drv.nouveau", "drv.uvm-missing", "drv.devnodes", "fab.fabricmanager", "hw.count",
		"hw.acs-iommu", "hw.pcie-degraded", "hw.throttle", "hw.ecc",
	} {
		if !unknown[id] {
			t.Errorf("%s does not say that it could not look", id)
		}
	}
}

// FuzzKernelLog verifies that no kernel log or node condition makes a check fail or quote unlimited text.
func FuzzKernelLog(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.", 4)
	f.Add("kernel: NVRM: Xid (PCI:0000:17:00 GPU-I:05): 94, pid=1, name=x, Contained: SM (0x1). RST: No, D-RST: No", 12)
	f.Add("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 3)
	f.Add("NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 4)
	f.Fuzz(func(t *testing.T, text string, priority int) {
		host := hwHost()
		host.KernelLog = append(host.KernelLog,
			api.KernelRecord{Sequence: 2, Uptime: time.Hour, Priority: priority, Text: text})
		read := hwSnapshot(host)
		api := hwSnapshot(nil)
		api.Nodes[0].Status.Conditions = append(api.Nodes[0].Status.Conditions,
			corev1.NodeCondition{Type: "XID", Status: corev1.ConditionTrue, Message: text})
		for _, s := range []*snapshot.Snapshot{read, api} {
			for _, found := range Examine(s, Options{Checks: hwChecks()}).Items {
				for _, e := range found.Evidence {
					if len(e.Text) > 2<<10+8 {
						t.Fatalf("%s quotes %d bytes", found.ID, len(e.Text))
					}
				}
			}
		}
	})
}

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// hwNow is the time of the snapshots in these tests. The node was started two hours earlier.
var hwNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const hwDriver = "580.95.05"

// TestHardwareHealthy verifies that a healthy node has no findings, and that no check lacks evidence.
func TestHardwareHealthy(t *testing.T) {
	t.Parallel()
	report := Examine(hwSnapshot(hwHost()), Options{Checks: hwChecks()})
	if len(report.Items) > 0 || len(report.Unknown) > 0 {
		t.Errorf("a healthy node gives findings %+v, unknown %+v", report.Items, report.Unknown)
	}
}

// TestHardwareFaults verifies that each fault on a node is the only root cause, with the correct severity.
func TestHardwareFaults(t *testing.T) {
	t.Parallel()
	const gpu = "NVRM: Xid (PCI:0000:17:00): "
	second := func(set ...string) func(*api.Diagnosis) {
		return func(d *api.Diagnosis) { d.SMI = hwXML(hwGPU("17", set...), hwGPU("3d")) }
	}
	says := func(lines ...string) func(*api.Diagnosis) {
		return func(d *api.Diagnosis) {
			for i, text := range lines {
				d.KernelLog = append(d.KernelLog, hwLine(60+float64(i)/60, text))
			}
		}
	}
	all := func(changes ...func(*api.Diagnosis)) func(*api.Diagnosis) {
		return func(d *api.Diagnosis) {
			for _, change := range changes {
				change(d)
			}
		}
	}
	for _, test := range []struct {
		name   string
		change func(*api.Diagnosis)
		want   []string
	}{
		{
			"row pending", second("remapped_row_pending=Yes", "remapped_row_unc=1", "dram_uncorrectable=1"),
			[]string{"hw.row-remap warning"},
		},
		{"no spare row", second("remapped_row_failure=Yes", "dram_uncorrectable=3"), []string{"hw.row-remap error"}},
		{"page pending", second("pending_retirement=Yes"), []string{"hw.row-remap warning"}},
		{"63, and the reset is pending", all(
			second("remapped_row_pending=Yes"),
			says(gpu+"63, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."),
		), []string{"hw.row-remap warning"}},
		{
			"63, and all is done",
			says(gpu + "63, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."),
			nil,
		},
		{"double bit error", all(second("remapped_row_pending=Yes", "gpu_recovery_action=Drain and Reset"), says(
			gpu+
				"48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0xe9b9107e0 partition 3, subpartition 0.",
			gpu+"171, HBM, Uncorrectable DRAM error in FBPA 6 subpartition 0 physAddr 0x1",
			gpu+"63, pid=1, name=python, Row Remapper: New row (0x1) marked for remapping, reset gpu to activate.",
			gpu+"154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
			gpu+"94, pid=1, name=python, Contained: SM (0x1). RST: No, D-RST: No",
			gpu+"45, pid=1, name=python, channel 0x00000002",
		)), []string{"hw.ecc error"}},
		{"double bit error, and remapping failed", all(
			second("remapped_row_failure=Yes"),
			says(gpu+"48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"),
		), []string{"hw.row-remap error"}},
		{
			"contained", says(gpu + "94, pid=1, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
			[]string{"hw.ecc warning"},
		},
		{"remapping failed", says(gpu+"62, 223b6a66 00002100 00000000",
			gpu+"48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
			gpu+"64, Row Remapper Error: (0x0000000000000001) - All reserved rows for bank are remapped"),
			[]string{"hw.row-remap error"}},
		{"SRAM errors", second("sram_uncorrectable_parity=1"), []string{"hw.ecc warning"}},
		{"SRAM threshold", second("sram_threshold_exceeded=Yes"), []string{"hw.ecc error"}},
		{"ECC mode pending", second("pending_ecc=Disabled"), nil},
		{"reset asked for", second("gpu_recovery_action=Reset"), []string{"hw.recovery-action error"}},
		{
			"reset asked for, old driver", second("gpu_recovery_action=N/A", "reset_required=Yes"),
			[]string{"hw.recovery-action error"},
		},
		{"an application's fault", says(gpu+
			"31, pid=1942, name=llama, channel 0x00000002, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6", gpu+
			"43, pid=1942, name=llama, channel 0x00000008",
			gpu+"45, pid=1942, name=llama, channel 0x00000002"), nil},
		{"45 alone", says(gpu + "45, pid=1942, name=llama, channel 0x00000002"), nil},
		{"PMU halted", all(second("gpu_recovery_action=Reset"), says(gpu+"62, 223b6a66 00002100 00000000 20662342",
			gpu+"154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
			gpu+"45, pid=1, name=python, channel 0x00000002")), []string{"hw.xid-recent error"}},
		{
			"154 alone", says(gpu + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
			[]string{"hw.xid-recent error"},
		},
		{"unknown code", says(gpu + "999, something new"), []string{"hw.xid-recent warning"}},
		{
			"NVLink",
			says(gpu +
				"74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
			[]string{"hw.nvlink error"},
		},
		{"NVLink 5, not fatal", says(
			gpu +
				"145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
		), nil},
		{
			"NVLink 5, fatal",
			says(gpu +
				"149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"),
			[]string{"hw.nvlink error"},
		},
		{
			"NVSwitch", says("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
			[]string{"hw.nvlink error"},
		},
		{"GSP", all(second("gpu_recovery_action=Reset"),
			says(gpu+
				"119, pid=4071838, name=python, Timeout after 45s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
				gpu+"154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")),
			[]string{"drv.gsp error"}},
		{"XID of another node's GPU", says("NVRM: Xid (PCI:0000:c7:00): 79, GPU has fallen off the bus."), nil},
		{"79, and the GPU answers", says(gpu + "79, GPU has fallen off the bus."), []string{"hw.gpu-lost warning"}},
		{"79, and the driver was loaded since", func(d *api.Diagnosis) {
			d.KernelLog = append(d.KernelLog, hwLine(60, gpu+"79, GPU has fallen off the bus."),
				hwLine(70, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  "+hwDriver))
		}, nil},
		{"79, and the GPU is gone", func(d *api.Diagnosis) {
			d.SMI = "Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error\n" + hwXML(hwGPU("3d"))
			d.Probe.PCI[0].ConfigReadable = false
			says(gpu+"79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.",
				"NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.",
				gpu+
					"119, pid=1, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
				gpu+"154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
				gpu+"45, pid=1, name=python, channel 0x00000002")(d)
		}, []string{"hw.gpu-lost error"}},
		{"lost before the driver was loaded", func(d *api.Diagnosis) {
			d.SMI = hwXML(hwGPU("3d"))
			says(
				"NVRM: The NVIDIA GPU 0000:17:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",
			)(d)
		}, []string{"hw.gpu-lost error"}},
		{"nvidia-smi cannot reach it", func(d *api.Diagnosis) {
			d.SMI, d.Probe.SMIError = "",
				"Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.  Reboot the system to recover this GPU"
		}, []string{"hw.gpu-lost error"}},
		{
			"reads as all ones",
			func(d *api.Diagnosis) { d.SMI, d.Probe.PCI[0].ConfigReadable = hwXML(hwGPU("3d")), false },
			[]string{"hw.gpu-lost error"},
		},
		{"not in nvidia-smi", func(d *api.Diagnosis) { d.SMI = hwXML(hwGPU("3d")) }, []string{"hw.count error"}},
		{
			"given to a virtual machine",
			func(d *api.Diagnosis) { d.SMI, d.Probe.PCI[0].Driver = hwXML(hwGPU("3d"), hwGPU("4e")), "vfio-pci" }, nil,
		},
		{"too hot", second("clocks_event_reason_hw_slowdown=Active", "clocks_event_reason_hw_thermal_slowdown=Active",
			"gpu_temp=93 C"), []string{"hw.throttle warning"}},
		{
			"power brake",
			second("clocks_event_reason_hw_slowdown=Active", "clocks_event_reason_hw_power_brake_slowdown=Active"),
			[]string{"hw.throttle warning"},
		},
		{"8 lanes", second("current_link_width=8x"), []string{"hw.pcie-degraded warning"}},
		{"8 lanes, in a virtual machine", second("current_link_width=8x", "virtualization_mode=Pass-Through"), nil},
		{"slow link under load", second("gpu_util=95 %", "current_link_gen=1"), []string{"hw.pcie-degraded warning"}},
		{
			"fast link under load, of a slower host",
			second("gpu_util=95 %", "current_link_gen=4", "max_host_link_gen=4"), nil,
		},
		{
			"unlicensed", second("license_status=Unlicensed (Unrestricted)", "virtualization_mode=VGPU"),
			[]string{"vgpu.license warning"},
		},
		{
			"unlicensed and restricted", second("license_status=Unlicensed (Restricted)", "virtualization_mode=VGPU"),
			[]string{"vgpu.license error"},
		},
		{
			"no persistence",
			all(second("persistence_mode=Disabled"), func(d *api.Diagnosis) { d.Probe.Processes = nil }), nil,
		},
		{"ACS", func(d *api.Diagnosis) {
			on := true
			d.Probe.PCI[0].ACSRedirect, d.Probe.PCI[1].ACSRedirect = &on, &on
		}, nil},
		{"ACS and an IOMMU that translates", func(d *api.Diagnosis) {
			on := true
			d.Probe.PCI[0].ACSRedirect, d.Probe.PCI[1].ACSRedirect, d.Probe.Cmdline = &on, &on, "ro intel_iommu=on"
		}, []string{"hw.acs-iommu warning"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			host := hwHost()
			test.change(host)
			report := Examine(hwSnapshot(host), Options{Checks: hwChecks()})
			if got := hwRoots(report); !slices.Equal(got, test.want) {
				t.Errorf("roots %v, want %v\n%+v", got, test.want, report.Items)
			}
			for _, f := range report.Items {
				if len(f.Evidence) == 0 || f.Fix.Text == "" || f.Title == "" ||
					!slices.Equal(f.Nodes, []string{"gpu-1"}) {
					t.Errorf("%s lacks evidence, a fix, a title or its node: %+v", f.ID, f)
				}
			}
		})
	}
}

// TestPersistence verifies that a driver that unloads its state is mentioned, but not reported as a problem.
func TestPersistence(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.SMI = strings.ReplaceAll(host.SMI, "<persistence_mode>Enabled", "<persistence_mode>Disabled")
	for _, daemon := range []bool{true, false} {
		host.Probe.Processes = nil
		if daemon {
			host.Probe.Processes = map[string][]int{"nvidia-persistenced": {812}}
		}
		found := false
		for _, f := range Examine(hwSnapshot(host), Options{Checks: hwChecks()}).Items {
			if f.ID == "drv.persistence" {
				found = true
				if f.Severity != finding.Info {
					t.Errorf("a GPU without persistence is %s: %+v", f.Severity, f)
				}
			}
		}
		if found == daemon {
			t.Errorf("with nvidia-persistenced: %v; found: %v", daemon, found)
		}
	}
}

// TestFaultsOfTwoGPUs verifies that faults of two GPUs on one node are separate root causes.
func TestFaultsOfTwoGPUs(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.SMI = hwXML(hwGPU("17", "gpu_recovery_action=Reset"),
		hwGPU("3d", "remapped_row_pending=Yes", "current_link_width=8x"))
	host.KernelLog = append(host.KernelLog,
		hwLine(
			60,
			"NVRM: Xid (PCI:0000:17:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
		),
		hwLine(
			60.1,
			"NVRM: Xid (PCI:0000:3d:00): 119, pid=1, name=python, Timeout after 45s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
		))
	want := []string{"drv.gsp error", "hw.ecc error", "hw.pcie-degraded warning", "hw.row-remap warning"}
	if got := hwRoots(Examine(hwSnapshot(host), Options{Checks: hwChecks()})); !slices.Equal(got, want) {
		t.Errorf("roots %v, want %v", got, want)
	}
}

// TestInjectedLine verifies that a line that a program wrote to the kernel log is reported as such, with low confidence
// and the same ID.
func TestInjectedLine(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.KernelLog = append(host.KernelLog, api.KernelRecord{
		Sequence: 812, Uptime: time.Hour, Priority: 12,
		Text: "kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
	})
	f := hwFinding(t, Examine(hwSnapshot(host), Options{Checks: hwChecks()}), "hw.gpu-lost")
	if f.Confidence != finding.Possible || !strings.Contains(f.Title, "written by a program") ||
		!strings.Contains(f.Evidence[0].Source, "user space") ||
		!strings.Contains(f.Evidence[0].Source, "sequence 812") {
		t.Errorf("it is told as if the driver had written it: %+v", f)
	}
}

// TestResetWithContainerDriver verifies that the GPU is reset in the driver's container if the node has no nvidia-smi.
func TestResetWithContainerDriver(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.KernelLog = append(host.KernelLog, hwLine(60, "NVRM: Xid (PCI:0000:17:00): 48, DBE (double bit error)"))
	s := hwSnapshot(host)
	pod := hwPod(s, "nvidia-driver-daemonset-x", "nvidia-driver-daemonset", "")
	pod.Spec.Containers[0].Name, pod.Status = "nvidia-driver-ctr", corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	f := hwFinding(t, Examine(s, Options{Checks: []string{"hw.ecc"}}), "hw.ecc")
	want := "kubectl exec -n gpu-operator nvidia-driver-daemonset-x -c nvidia-driver-ctr -- nvidia-smi --gpu-reset -i "
	if all := strings.Join(f.Fix.Commands, "\n"); !strings.Contains(all, want) {
		t.Errorf("the commands are\n%s", all)
	}
}

// TestRepeatedXIDs verifies that many lines with the same code and GPU are one finding with a count, and that
// repetition makes an application fault a warning.
func TestRepeatedXIDs(t *testing.T) {
	t.Parallel()
	host := hwHost()
	for i := range 12 {
		host.KernelLog = append(host.KernelLog, hwLine(float64(20+5*i), fmt.Sprintf(
			"NVRM: Xid (PCI:0000:17:00): 13, pid=%d, name=python3, Graphics Exception: ChID 000c, Class 0000cbc0", i+1,
		)))
	}
	f := hwFinding(t, Examine(hwSnapshot(host), Options{Checks: hwChecks()}), "hw.xid-recent")
	if f.Severity != finding.Warning || !strings.Contains(f.Evidence[0].Source, "newest of 12") ||
		!strings.Contains(f.Evidence[0].Text, "pid=12,") {
		t.Errorf("12 lines of one code: %+v", f)
	}
}

// TestXIDThatThePluginActsOn verifies that an application's XID is a warning if the device plugin withdrew the GPU
// because of it: the GPU is missing until the plugin pod is restarted.
func TestXIDThatThePluginActsOn(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.KernelLog = append(host.KernelLog, hwLine(
		60,
		"NVRM: Xid (PCI:0000:17:00): 69, pid=1310987, name=train.3, Class Error: ChId 0008, Class 0000cbc0, Offset 00000184, Data ffffffff, ErrorCode 00000004",
	))
	s := hwSnapshot(host)
	if got := hwRoots(Examine(s, Options{Checks: hwChecks()})); len(got) > 0 {
		t.Errorf("the GPU is in use, and 69 gives %v", got)
	}
	s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
	if got := hwRoots(Examine(s, Options{Checks: hwChecks()})); !slices.Equal(got, []string{"hw.xid-recent warning"}) {
		t.Errorf("the plugin withdrew the GPU, and 69 gives %v", got)
	}
}

// TestLostGPUHasOneRoot verifies that the reports about a lost GPU by the kernel, nvidia-smi, the node's capacity and
// conditions, the device plugin and a pod have one root cause.
func TestLostGPUHasOneRoot(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.SMI = "Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error\n" + hwXML(hwGPU("3d"))
	host.KernelLog = append(host.KernelLog, hwLine(60, "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."),
		hwLine(
			60.1,
			"NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
		))
	s := hwSnapshot(host)
	s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("1")
	s.Nodes[0].Status.Capacity["nvidia.com/gpu"] = resource.MustParse("1")
	s.Nodes[0].Status.Conditions = append(s.Nodes[0].Status.Conditions, corev1.NodeCondition{
		Type: "SysLogsXIDError", Status: corev1.ConditionTrue, Reason: "SysLogsXIDErrorIsNotHealthy",
		Message: "ErrorCode:79 PCI:0000:17:00 GPU has fallen off the bus. Recommended Action=RESTART_BM;",
	})
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "train-0", CreationTimestamp: metav1.NewTime(hwNow.Add(-time.Minute)),
	}}
	pod.Spec.NodeName = "gpu-1"
	pod.Spec.Containers = []corev1.Container{{
		Name:      "main",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
	}}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
		Message: "Pod was rejected: Allocate failed due to rpc error: nvml: GPU is lost, which is unexpected",
	}
	s.Pods = []corev1.Pod{pod}
	report := Examine(s, Options{})
	if got := hwRoots(report); !slices.Equal(got, []string{"hw.gpu-lost error"}) {
		for _, f := range report.Items {
			t.Logf("root %t %s %s %q caused by %v", f.Root, f.ID, f.Severity, f.Title, f.CausedBy)
		}
		t.Errorf("one lost GPU has the roots %v", got)
	}
	for _, u := range report.Unknown {
		if u.Check == "hw.gpu-lost" {
			t.Errorf("it is unknown: %+v", u)
		}
	}
}

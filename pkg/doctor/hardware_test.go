package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// hwNow is the time of the snapshots in these tests. The node was started two hours earlier.
var hwNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const hwDriver = "580.95.05"

// hwGPU returns nvidia-smi's XML for one healthy H100. Each string in set is "element=value" for one of its elements.
func hwGPU(bus string, set ...string) string {
	text := `<gpu id="00000000:` + strings.ToUpper(bus) + `:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><persistence_mode>Enabled</persistence_mode>
	<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode><uuid>GPU-` + bus + `</uuid>
	<gpu_virtualization_mode><virtualization_mode>None</virtualization_mode></gpu_virtualization_mode>
	<gpu_reset_status><reset_required>No</reset_required><drain_and_reset_recommended>No</drain_and_reset_recommended></gpu_reset_status>
	<gpu_recovery_action>None</gpu_recovery_action><gsp_firmware_version>` + hwDriver + `</gsp_firmware_version>
	<vgpu_software_licensed_product><license_status>N/A</license_status></vgpu_software_licensed_product>
	<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen><max_host_link_gen>5</max_host_link_gen></pcie_gen>
	<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info><replay_counter>3</replay_counter></pci>
	<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
	<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown><clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
	<clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown><clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown></clocks_event_reasons>
	<fb_memory_usage><total>81559 MiB</total><used>0 MiB</used></fb_memory_usage><utilization><gpu_util>0 %</gpu_util></utilization>
	<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
	<ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>0</dram_uncorrectable></volatile>
	<aggregate><sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate><channel_repair_pending>No</channel_repair_pending><unrepairable_memory>No</unrepairable_memory></ecc_errors>
	<retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
	<remapped_rows><remapped_row_unc>0</remapped_row_unc><remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
	<temperature><gpu_temp>40 C</gpu_temp><gpu_temp_tlimit>45 C</gpu_temp_tlimit></temperature><fabric><state>N/A</state><status>N/A</status></fabric></gpu>`
	for _, s := range set {
		element, value, _ := strings.Cut(s, "=")
		text = regexp.MustCompile(`<`+element+`>[^<]*</`+element+`>`).ReplaceAllString(text,
			"<"+element+">"+value+"</"+element+">")
	}
	return text
}

func hwXML(gpus ...string) string {
	return `<?xml version="1.0" ?><nvidia_smi_log><driver_version>` + hwDriver + `</driver_version><attached_gpus>` +
		fmt.Sprint(len(gpus)) + `</attached_gpus>` +
		strings.Join(gpus, "") + `</nvidia_smi_log>`
}

// hwLine returns a kernel log record from the driver, the given number of minutes after the node was started.
func hwLine(minutes float64, text string) api.KernelRecord {
	uptime := time.Duration(minutes * float64(time.Minute))
	return api.KernelRecord{
		Sequence: uint64(1000 + minutes*10), Uptime: uptime, Time: hwNow.Add(uptime - 2*time.Hour), Priority: 4,
		Text: text,
	}
}

// hwHost returns a healthy node with two GPUs, 0000:17:00.0 and 0000:3d:00.0.
func hwHost() *api.Diagnosis {
	d := &api.Diagnosis{SMI: hwXML(hwGPU("17"), hwGPU("3d"))}
	d.Info.KernelRelease, d.Info.DriverVersion = "6.8.0-60-generic", hwDriver
	p := &d.Probe
	p.OS = map[string]string{"ID": "ubuntu", "PRETTY_NAME": "Ubuntu 24.04.2 LTS"}
	for _, bus := range []string{"17", "3d"} {
		p.PCI = append(p.PCI, api.PCIDevice{
			Address: "0000:" + bus + ":00.0", Class: "0x030200", Device: "0x2330", Driver: "nvidia", LinkWidth: 16,
			MaxLinkWidth: 16, ConfigReadable: true,
		})
	}
	p.Modules = []api.Module{{Name: "nvidia", Version: hwDriver}, {Name: "nvidia_uvm"}, {Name: "nvidia_modeset"}}
	p.Driver = api.DriverFiles{
		Root: "/", Kernel: hwDriver, Libraries: []string{
			"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + hwDriver, "/usr/lib/x86_64-linux-gnu/libcuda.so." + hwDriver,
		},
		Built:   []string{"/lib/modules/6.8.0-60-generic/updates/dkms/nvidia.ko.zst"},
		Kernels: []string{"6.8.0-60-generic"},
	}
	for i, name := range []string{"nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"} {
		p.Devices = append(p.Devices, api.DeviceNode{Path: "/dev/" + name, Major: 195, Minor: i, Mode: "0666"})
	}
	p.Processes = map[string][]int{"nvidia-persistenced": {812}}
	d.KernelLog = []api.KernelRecord{hwLine(0.1, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  "+hwDriver)}
	return d
}

// hwSnapshot returns a cluster with one node that has this host data.
func hwSnapshot(host *api.Diagnosis) *snapshot.Snapshot {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "gpu-1", Labels: map[string]string{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "2"},
	}}
	n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		KernelVersion: "6.8.0-60-generic", OSImage: "Ubuntu 24.04.2 LTS", ContainerRuntimeVersion: "containerd://2.1.4",
	}
	s := &snapshot.Snapshot{Meta: snapshot.Meta{Created: hwNow}, Nodes: []corev1.Node{n}}
	if host != nil {
		s.Hosts = map[string]*api.Diagnosis{"gpu-1": host}
	}
	return s
}

// hwChecks returns the checks under test.
func hwChecks() []string { return []string{"hw.*", "drv.*", "fab.*", "vgpu.*"} }

// hwRoots returns a report's root causes with severity warning or higher as "id severity".
func hwRoots(report Report) []string {
	var all []string
	for _, f := range report.Roots() {
		if f.Severity != finding.Info {
			all = append(all, f.ID+" "+string(f.Severity))
		}
	}
	slices.Sort(all)
	return all
}

func hwFinding(t *testing.T, report Report, id string) finding.Finding {
	t.Helper()
	for _, f := range report.Items {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no finding %s in %+v", id, report.Items)
	return finding.Finding{}
}

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

// TestHardwareFromAPI verifies that the conditions of a node that was not read are used, in each detector's format, and
// that everything else is unknown rather than healthy.
func TestHardwareFromAPI(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		condition corev1.NodeCondition
		want      string
	}{
		"NVSentinel": {corev1.NodeCondition{
			Type: "SysLogsXIDError", Status: corev1.ConditionTrue,
			Message: "ErrorCode:79 PCI:0000:17:00 GPU_UUID:GPU-1 NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus",
		}, "hw.gpu-lost error"},
		"EKS": {corev1.NodeCondition{
			Type: "AcceleratedHardwareReady", Status: corev1.ConditionFalse, Reason: "NvidiaXID48Error",
		}, "hw.ecc error"},
		"NPD": {corev1.NodeCondition{
			Type: "GPUXidErrors", Status: corev1.ConditionTrue, Reason: "XIDErrors",
			Message: "NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=python",
		}, "drv.gsp error"},
		"NVSentinel healthy": {corev1.NodeCondition{
			Type: "SysLogsXIDError", Status: corev1.ConditionFalse, Reason: "SysLogsXIDErrorIsHealthy",
			Message: "No Health Failures",
		}, ""},
	} {
		s := hwSnapshot(nil)
		s.Meta.APIOnly = true
		s.Nodes[0].Status.Conditions = append(s.Nodes[0].Status.Conditions, test.condition)
		report := Examine(s, Options{Checks: hwChecks()})
		if got := strings.Join(hwRoots(report), " "); got != test.want {
			t.Errorf("%s: roots %q, want %q", name, got, test.want)
		}
		unknown := map[string]bool{}
		for _, u := range report.Unknown {
			unknown[u.Check] = true
		}
		for _, id := range []string{
			"hw.row-remap", "hw.nvlink", "hw.throttle", "hw.pcie-degraded", "hw.count", "drv.not-loaded",
			"drv.uvm-missing", "fab.fabricmanager", "vgpu.license",
		} {
			if !unknown[id] {
				t.Errorf("%s: %s does not say that it could not look", name, id)
			}
		}
	}
}

// TestHealthyOutputs verifies that real nvidia-smi output for healthy GPUs, if available, causes no finding with
// severity warning or higher.
func TestHealthyOutputs(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("NVIDIA_SMI_OUTPUTS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "shared", "data", "nvidia-smi")
	}
	files, _ := filepath.Glob(filepath.Join(folder, "*.xml"))
	if len(files) == 0 {
		t.Skipf("no outputs of nvidia-smi in %s", folder)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		host := hwHost()
		host.SMI = string(raw)
		log, err := nvidiasmi.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		host.Probe.PCI, host.Probe.Driver.Kernel, host.Info.DriverVersion = nil, log.Driver, log.Driver
		host.Probe.Driver.Libraries = []string{"/usr/lib/libnvidia-ml.so." + log.Driver}
		host.Probe.Processes = nil
		for i, g := range log.GPUs {
			host.Probe.PCI = append(host.Probe.PCI,
				api.PCIDevice{
					Address: g.PCI.WithFunction(), Class: "0x030200", Driver: "nvidia", ConfigReadable: true,
				})
			host.Probe.Devices = append(host.Probe.Devices, api.DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", i)})
		}
		s := hwSnapshot(host)
		s.Nodes[0].Status.Capacity, s.Nodes[0].Status.Allocatable = nil, nil
		report := Examine(s, Options{Checks: hwChecks()})
		if got := hwRoots(report); len(got) > 0 {
			t.Errorf("%s: a healthy GPU gives %v: %+v", filepath.Base(name), got, report.Items)
		}
		if len(report.Unknown) > 0 {
			t.Errorf("%s: unknown: %+v", filepath.Base(name), report.Unknown)
		}
	}
}

// TestHardwareHostile verifies that hostile nvidia-smi output and hostile log lines are reported as unknown, with
// limited size.
func TestHardwareHostile(t *testing.T) {
	t.Parallel()
	host := hwHost()
	host.SMI = "<nvidia_smi_log>" + strings.Repeat("<gpu>", 100_000)
	host.KernelLog = append(host.KernelLog, hwLine(60, "NVRM: Xid (PCI:0000:17:00): 62, "+strings.Repeat("A", 1<<20)),
		hwLine(61, "NVRM: Xid (PCI:0000:17:00): 99999999999999999999, x"))
	report := Examine(hwSnapshot(host), Options{Checks: hwChecks()})
	for _, f := range report.Items {
		for _, e := range f.Evidence {
			if len(e.Text) > 3<<10 {
				t.Errorf("%s quotes %d bytes", f.ID, len(e.Text))
			}
		}
	}
	if len(report.Unknown) == 0 {
		t.Error("an output of nvidia-smi that cannot be read is taken for health")
	}
}

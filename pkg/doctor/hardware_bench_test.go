package doctor

import (
	"fmt"
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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

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

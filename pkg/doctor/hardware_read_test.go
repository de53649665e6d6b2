package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
)

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

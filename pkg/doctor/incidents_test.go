package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// hwTrain adds a GPU pod that crashed some time ago to the node, with a log.
func hwTrain(host *api.Diagnosis, ago time.Duration, log string) *bench {
	b := &bench{*hwSnapshot(host)}
	return b.pod("train", "gpu-1", 1, crashing(1, "Error"), func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated.FinishedAt = metav1.NewTime(hwNow.Add(-ago))
	}).log("train", log)
}

// TestOwnReasonStaysRoot verifies that problems with a node do not explain a pod that logs its own reason, but may
// explain a pod that logs a CUDA error or nothing.
func TestOwnReasonStaysRoot(t *testing.T) {
	t.Parallel()
	broken := func() *api.Diagnosis { // a GPU of the node needs a reset
		host := hwHost()
		host.SMI = hwXML(hwGPU("17", "gpu_recovery_action=Reset"), hwGPU("3d"))
		return host
	}
	acs := func() *api.Diagnosis {
		host, yes := hwHost(), true
		host.Probe.Cmdline = "ro intel_iommu=on"
		for i := range host.Probe.PCI {
			host.Probe.PCI[i].ACSRedirect = &yes
		}
		return host
	}
	reset, own := "hw.recovery-action error GPU gpu-1/0000:17:00", "wl.pod-failing error Pod team/train"
	for name, c := range map[string]struct {
		host *api.Diagnosis
		log  string
		want []string
	}{
		"an ImportError on a broken node": {broken(), importError, []string{reset, own}},
		"a missing file on a broken node": {
			broken(), "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'\n",
			[]string{reset, own},
		},
		"words of CUDA on a broken node": {
			broken(), "RuntimeError: CUDA error: unspecified launch failure\n", []string{reset},
		},
		"a library of the driver is missing": {
			broken(), "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n",
			[]string{reset},
		},
		"no word on a broken node":       {broken(), "starting\n", []string{reset}},
		"an ImportError where ACS is on": {acs(), importError, []string{"hw.acs-iommu warning Node gpu-1", own}},
		"a crash without words where ACS is on": {
			acs(), "starting\n", []string{"hw.acs-iommu warning Node gpu-1", own},
		},
		"collectives time out where ACS is on": {
			acs(), "Watchdog caught collective operation timeout: WorkNCCL\n",
			[]string{"hw.acs-iommu error Node gpu-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := hwTrain(c.host, time.Minute, c.log)
			wantAlarms(t, Examine(&b.Snapshot, Options{Checks: []string{"hw.*", "drv.*", "fab.*", "wl.*"}}), c.want...)
		})
	}
}

// TestOldIncidents verifies that an old GPU incident of which nvidia-smi shows no trace is neither an alarm nor the
// cause of a recent crash. A recent incident explains the pods that failed at that time, and an ongoing one explains
// all.
func TestOldIncidents(t *testing.T) {
	t.Parallel()
	const xid48 = "NVRM: Xid (PCI:0000:17:00): 48, pid=1, name=x, An uncorrectable double bit error (DBE) has been detected"
	at := func(host *api.Diagnosis, ago time.Duration, texts ...string) *api.Diagnosis {
		host.Probe.Uptime, host.Probe.Time, host.KernelLog = 200*24*time.Hour, hwNow, nil
		for i, text := range texts {
			host.KernelLog = append(host.KernelLog, api.KernelRecord{
				Sequence: uint64(i + 9), Priority: 4, Uptime: host.Probe.Uptime - ago, Time: hwNow.Add(-ago),
				Text: text,
			})
		}
		return host
	}
	needsReset := func() *api.Diagnosis {
		host := hwHost()
		host.SMI = hwXML(hwGPU("17", "gpu_recovery_action=Reset"), hwGPU("3d"))
		return host
	}
	unread := func() *api.Diagnosis {
		host := hwHost()
		host.SMI = ""
		return host
	}
	day := 24 * time.Hour
	ecc, pod, words := "hw.ecc error GPU gpu-1/0000:17:00", "wl.pod-failing error Pod team/train",
		"RuntimeError: CUDA error: unspecified launch failure\n"
	for name, c := range map[string]struct {
		host   *api.Diagnosis
		failed time.Duration
		log    string
		want   []string
	}{
		"three of half a year ago, and a crash of today": {at(hwHost(), 190*day, xid48,
			"NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
			"NVRM: Xid (PCI:0000:17:00): 62, pid=1, name=x, 0000(0000) 00000000 00000000"), time.Minute, "starting\n",
			[]string{pod}},
		"it fell off the bus half a year ago": {
			at(hwHost(), 190*day, "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus."), time.Minute,
			"starting\n", []string{pod},
		},
		"old, and the GPU still needs a reset": {
			at(needsReset(), 190*day, xid48), time.Minute, words, []string{ecc},
		},
		"old, and nvidia-smi was not read": {
			at(unread(), 190*day, xid48), time.Minute, words, []string{ecc},
		},
		"an hour ago, and a crash a minute ago": {
			at(hwHost(), time.Hour, xid48), time.Minute, words, []string{ecc, "wl.cuda-error error Pod team/train"},
		},
		"an hour ago, and the crash a minute after": {
			at(hwHost(), time.Hour, xid48), 59 * time.Minute, words, []string{ecc},
		},
		"an hour ago, and the crash a minute ago says so": {
			at(hwHost(), time.Hour, xid48), time.Minute, "CUDA error: uncorrectable ECC error encountered\n",
			[]string{ecc},
		},
		"an hour ago, and the crash before": {
			at(hwHost(), time.Hour, xid48), 2 * time.Hour, words, []string{ecc, "wl.cuda-error error Pod team/train"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := hwTrain(c.host, c.failed, c.log)
			wantAlarms(t, Examine(&b.Snapshot, Options{Checks: []string{"hw.*", "drv.gsp", "wl.*"}}), c.want...)
		})
	}
	counted := hwHost()
	counted.SMI = hwXML(hwGPU("17", "dram_uncorrectable=3"), hwGPU("3d"))
	wantAlarms(t, Examine(hwSnapshot(at(counted, 190*day, xid48)), Options{Checks: []string{"hw.*"}}),
		"hw.ecc warning GPU gpu-1/0000:17:00")
}

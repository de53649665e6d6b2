package nvidiasmi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func parsed(t *testing.T, name string) *Log {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	log, err := Parse(raw)
	if err != nil {
		t.Fatalf("%s does not parse: %v", name, err)
	}
	return log
}

// is compares a value that may be absent.
func is[T comparable](t *testing.T, what string, got *T, want T) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is absent, want %v", what, want)
	} else if *got != want {
		t.Errorf("%s is %v, want %v", what, *got, want)
	}
}

func absent[T any](t *testing.T, what string, got *T) {
	t.Helper()
	if got != nil {
		t.Errorf("%s is %v, but nobody told it", what, *got)
	}
}

// The newest schema: each field from where it is there.
func TestNewSchema(t *testing.T) {
	t.Parallel()
	log := parsed(t, "h100-v13.xml")
	is(t, "attached GPUs", log.Attached, 1)
	if log.Driver != "590.48.01" || log.CUDA != "13.1" || len(log.GPUs) != 1 {
		t.Fatalf("driver %q, CUDA %q, %d GPUs", log.Driver, log.CUDA, len(log.GPUs))
	}
	g := log.GPUs[0]
	if g.PCI == nil || g.PCI.String() != "0000:00:09" || g.Product != "NVIDIA H100 80GB HBM3" ||
		g.Architecture != "Hopper" || g.ComputeMode != "Default" {
		t.Errorf("it is %+v %q %q %q", g.PCI, g.Product, g.Architecture, g.ComputeMode)
	}
	is(t, "minor", g.Minor, 0)
	is(t, "persistence", g.Persistence, true)
	is(t, "MIG", g.MIG.Enabled, false)
	is(t, "uncorrectable errors of SRAM, parity and SEC-DED together", g.ECC.Volatile.SRAMUncorrectable, 3)
	is(t, "threshold", g.ECC.SRAMThresholdExceeded, false)
	is(t, "rows remapped", g.Remapped.Uncorrectable, 1)
	is(t, "rows pending", g.Remapped.Pending, true)
	is(t, "rows failed", g.Remapped.Failure, false)
	is(t, "banks with all spare rows", g.Remapped.Banks.Max, 2559)
	absent(t, "retired pages", g.Retired.DoubleBit)
	absent(t, "pages pending", g.Retired.Pending)
	is(t, "PCIe generation", g.PCIe.Generation, 5)
	absent(t, "the host's PCIe generation", g.PCIe.HostGeneration)
	is(t, "lanes", g.PCIe.Width, 16)
	is(t, "replays", g.PCIe.Replays, 9)
	is(t, "idle", g.Slowdown.Idle, true)
	is(t, "slowdown", g.Slowdown.Hardware, false)
	is(t, "margin", g.Temperature.Margin, 45)
	is(t, "margin of slowdown", g.Temperature.SlowdownMargin, -2)
	absent(t, "temperature of slowdown", g.Temperature.Slowdown)
	is(t, "memory", g.MemoryTotal, 81559)
	is(t, "utilization", g.Utilization.GPU, 0)
	if g.RecoveryAction != "None" || g.GSPFirmware != "590.48.01" || g.Fabric.State != "Completed" ||
		g.Fabric.Health != "Healthy" {
		t.Errorf("recovery %q, GSP %q, fabric %+v", g.RecoveryAction, g.GSPFirmware, g.Fabric)
	}
	absent(t, "reset required, which is deprecated", g.ResetRequired)
	if len(g.Processes) != 1 || g.Processes[0].PID != 4711 || g.Processes[0].Name != "python3 <train>" {
		t.Errorf("processes: %+v", g.Processes)
	}
	if g.License != (License{}) || g.Lost() || len(g.Errors) > 0 {
		t.Errorf("a healthy GPU has license %+v, errors %v", g.License, g.Errors)
	}
}

// A schema of 2017: single_bit and double_bit, throttle reasons, and most of the rest absent and not zero.
func TestOldSchema(t *testing.T) {
	t.Parallel()
	g := parsed(t, "v100-v9.xml").GPUs[0]
	is(t, "DRAM, uncorrectable", g.ECC.Volatile.DRAMUncorrectable, 2)
	is(t, "DRAM, correctable", g.ECC.Volatile.DRAMCorrectable, 4)
	is(t, "SRAM, correctable", g.ECC.Volatile.SRAMCorrectable, 1)
	absent(t, "aggregate", g.ECC.Aggregate.DRAMCorrectable)
	is(t, "pending ECC mode", g.ECC.Pending, false)
	is(t, "pages retired", g.Retired.DoubleBit, 2)
	is(t, "pages pending", g.Retired.Pending, true)
	is(t, "slowdown", g.Slowdown.Hardware, true)
	absent(t, "thermal slowdown", g.Slowdown.HardwareThermal)
	is(t, "temperature of shutdown", g.Temperature.Shutdown, 90)
	absent(t, "MIG", g.MIG.Enabled)
	absent(t, "memory", g.MemoryTotal)
	absent(t, "lanes", g.PCIe.Width)
	if g.Remapped != nil || g.Utilization != nil || g.RecoveryAction != "" || g.Fabric != (Fabric{}) {
		t.Errorf("fields that this schema lacks: %+v %+v %q %+v", g.Remapped, g.Utilization, g.RecoveryAction, g.Fabric)
	}
	if n, known := g.ECC.Volatile.Uncorrectable(); n != 2 || !known {
		t.Errorf("uncorrectable errors: %d, %v", n, known)
	}
	if _, known := g.ECC.Aggregate.Uncorrectable(); known {
		t.Error("uncorrectable errors over the life of the GPU are known, but nobody told them")
	}
}

// A GPU that is lost: in a line before the XML, or instead of its values.
func TestLostGPU(t *testing.T) {
	t.Parallel()
	log := parsed(t, "lost.xml")
	if len(log.Notes) != 1 || !strings.HasPrefix(log.Notes[0], "Unable to determine the device handle for GPU1") {
		t.Errorf("notes: %q", log.Notes)
	}
	if len(log.GPUs) != 2 || log.GPUs[0].Lost() || !log.GPUs[1].Lost() {
		t.Fatalf("of two GPUs the second is lost: %+v", log.GPUs)
	}
	absent(t, "memory of the lost one", log.GPUs[1].MemoryTotal)
	if got := log.GPUs[0].License.Status; got != "Unlicensed (Restricted)" {
		t.Errorf("license status %q", got)
	}
}

// An output that is cut off keeps the GPUs before the cut, and says that it is not whole.
func TestCutOff(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "lost.xml"))
	if err != nil {
		t.Fatal(err)
	}
	cut := raw[:strings.Index(string(raw), "<fan_speed>")]
	log, err := Parse(cut)
	if err == nil || log == nil || len(log.GPUs) != 1 || log.GPUs[0].ID != "00000000:33:00.0" {
		t.Fatalf("error %v, log %+v", err, log)
	}
}

// What is no output, or a hostile one, is refused in bounded time and memory.
func TestHostile(t *testing.T) {
	t.Parallel()
	bomb :=
		`<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>` +
			`<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>`
	for name, text := range map[string]string{
		"empty": "", "words": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
		"another document": "<?xml version='1.0'?><html/>", "entities": bomb,
		"deep":     "<nvidia_smi_log>" + strings.Repeat("<a>", 1_000_000),
		"wide":     "<nvidia_smi_log>" + strings.Repeat("<a/>", 1_000_000) + "</nvidia_smi_log>",
		"too long": "<nvidia_smi_log>" + strings.Repeat(" ", MaxSize) + "</nvidia_smi_log>",
	} {
		if log, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: it parses, as %+v", name, log)
		} else if log != nil && len(log.GPUs) > 0 {
			t.Errorf("%s: it has GPUs: %+v", name, log.GPUs)
		}
	}
	// 10 MB in one value are cut, and do not hide what follows.
	long := "<nvidia_smi_log><driver_version>" + strings.Repeat("5", 10<<20) +
		"</driver_version><cuda_version>13.1</cuda_version></nvidia_smi_log>"
	if log, err := Parse([]byte(long)); err != nil || log.CUDA != "13.1" || len(log.Driver) > maxText {
		t.Errorf("a value of 10 MB: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"h100-v13.xml", "v100-v9.xml", "lost.xml"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("<nvidia_smi_log><gpu id=\"x\"><mig_devices><mig_device/></mig_devices></gpu></nvidia_smi_log>"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := Parse(raw)
		if log == nil && err == nil {
			t.Fatal("neither a log nor an error")
		}
		if log == nil {
			return
		}
		for _, g := range log.GPUs {
			g.Lost()
			g.ECC.Volatile.Uncorrectable()
		}
	})
}

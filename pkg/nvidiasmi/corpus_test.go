package nvidiasmi

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// corpusEnv names a folder with more outputs of nvidia-smi.
const corpusEnv = "NVIDIA_SMI_OUTPUTS"

// Real outputs from public repositories, where they are there: each parses, each GPU has what every schema tells, and
// the few values that are checked here are those of the file.
func TestCorpus(t *testing.T) {
	t.Parallel()
	folder := os.Getenv(corpusEnv)
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "shared", "data", "nvidia-smi")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) == 0 {
		t.Skipf("no outputs of nvidia-smi in %s (%s names another folder)", folder, corpusEnv)
	}
	read := 0
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(raw, []byte("<nvidia_smi_log")) {
			continue // a capture of nvidia-smi's text only
		}
		log, err := Parse(raw)
		if err != nil {
			t.Errorf("%s does not parse: %v", name, err)
			continue
		}
		read++
		if log.Driver == "" || log.Attached == nil || int(*log.Attached) < len(log.GPUs) || len(log.GPUs) == 0 {
			t.Errorf("%s: driver %q, %d GPUs", name, log.Driver, len(log.GPUs))
		}
		for _, g := range log.GPUs {
			if g.PCI == nil || g.UUID == "" || g.Product == "" || g.Minor == nil || g.MemoryTotal == nil ||
				g.Temperature.GPU == nil ||
				g.PCIe.Width == nil || g.Slowdown.Hardware == nil || g.Persistence == nil || g.Lost() {
				t.Errorf("%s: GPU %s lacks what every schema tells: %+v", name, g.ID, g)
			}
		}
		g := log.GPUs[0]
		switch filepath.Base(name) {
		case "tesla-t4.xml":
			is(t, "T4: pages retired", g.Retired.DoubleBit, 0)
			is(t, "T4: PCIe generation", g.PCIe.Generation, 3)
			if len(g.Processes) != 2 || g.Processes[1].Name != "python" {
				t.Errorf("T4: processes %+v", g.Processes)
			}
		case "a100-sxm4-v12.xml":
			is(t, "A100: MIG", g.MIG.Enabled, true)
			is(t, "A100: reset required", g.ResetRequired, false)
			if len(g.MIG.Devices) != 4 || g.Remapped != nil {
				t.Errorf("A100: %d MIG devices, remapped rows %+v", len(g.MIG.Devices), g.Remapped)
			}
			is(t, "A100: instance", g.MIG.Devices[1].GPUInstance, 4)
		case "a10g.xml":
			is(t, "A10G: banks with all spare rows", g.Remapped.Banks.Max, 192)
			is(t, "A10G: rows pending", g.Remapped.Pending, false)
		case "rtx-3080-v13.xml":
			absent(t, "RTX 3080: ECC", g.ECC.Enabled)
			if g.RecoveryAction != "None" || g.Fabric.State != "" {
				t.Errorf("RTX 3080: recovery action %q, fabric %+v", g.RecoveryAction, g.Fabric)
			}
		}
	}
	t.Logf("%d outputs read", read)
}

package inspect

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/pci"
)

// information returns a real file's form: names, colons, tabs.
func information(model, uuid, bus, minor string) string {
	return fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 123\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\n"+
		"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %s\nGPU Firmware: \t 570.86.15\nGPU Excluded:\t No\n",
		model, uuid, bus, minor)
}

const unknownUUID = "GPU-????????-????-????-????-????????????"

func TestReadGPUs(t *testing.T) {
	const h100 = "NVIDIA H100 80GB HBM3"
	dir := "proc/driver/nvidia/gpus/"
	root := fstest.MapFS{
		dir + "0000:c8:00.0/information":  {Data: []byte(information(h100, "GPU-c", "0000:C8:00.0", "0"))},
		dir + "0000:17:00.0/information":  {Data: []byte(information(h100, "GPU-a", "0000:17:00.0", "2"))},
		dir + "0001:00:00.0/information":  {Data: []byte(information(h100, unknownUUID, "0001:00:00.0", "1"))},
		dir + "10000:01:00.0/information": {Data: []byte("")},
		dir + "0000:65:00.0/information": {
			Data: []byte(strings.Replace(information(h100, "GPU-x", "0000:65:00.0", "3"), "No", "Yes", 1)),
		},
		dir + "0000:66:00.0/numa_status": {},
		dir + "what/information":         {Data: []byte("Model: x\n")},

		"sys/bus/pci/devices/0000:17:00.0/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0000:17:00.0/device": {Data: []byte("0x233A\n")},
		"sys/bus/pci/devices/0000:c8:00.0/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0001:00:00.0/vendor": {Data: []byte("0x10de\n")},
		"sys/bus/pci/devices/0001:00:00.0/device": {Data: []byte("\x1b[31m\n")},
	}
	var warnings []string
	got := readGPUs(root, func(f string, args ...any) { warnings = append(warnings, fmt.Sprintf(f, args...)) })
	want := []api.GPU{
		{Index: 0, Minor: 2, UUID: "GPU-a", PCI: "0000:17:00.0", Model: h100, DeviceID: "10de:233a"},
		{Index: 1, Minor: -1, PCI: "0000:66:00.0"},
		{Index: 2, Minor: 0, UUID: "GPU-c", PCI: "0000:c8:00.0", Model: h100},
		{Index: 3, Minor: 1, PCI: "0001:00:00.0", Model: h100},
		{Index: 4, Minor: -1, PCI: "10000:01:00.0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if all := strings.Join(warnings, "\n"); len(warnings) != 3 || !strings.Contains(all, "excluded") ||
		!strings.Contains(all, `"what"`) || !strings.Contains(all, "0000:66:00.0") {
		t.Errorf("warnings: %s", all)
	}
	if got := readGPUs(fstest.MapFS{}, func(f string, args ...any) { t.Errorf(f, args...) }); got != nil {
		t.Errorf("without a driver: %v", got)
	}
}

func TestCompleteUUIDs(t *testing.T) {
	never := func() (string, error) { t.Error("nvidia-smi was asked for nothing"); return "", nil }
	completeUUIDs([]api.GPU{{UUID: "GPU-a", PCI: "0000:17:00.0"}}, never, t.Errorf)
	completeUUIDs(nil, never, t.Errorf)

	gpus := []api.GPU{{UUID: "GPU-a", PCI: "0000:17:00.0"}, {PCI: "0000:c8:00.0"}, {PCI: "0000:ca:00.0"}}
	var warnings []string
	warn := func(f string, args ...any) { warnings = append(warnings, fmt.Sprintf(f, args...)) }
	completeUUIDs(gpus, func() (string, error) { return "", errors.New("no such file") }, warn)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "no such file") || gpus[1].UUID != "" {
		t.Errorf("%v, %v", warnings, gpus)
	}
	warnings = nil
	completeUUIDs(gpus, func() (string, error) {
		return "00000000:17:00.0, GPU-z\n00000000:C8:00.0, GPU-b\nUnable to determine the device handle for GPU3: 0000:CA:00.0: Unknown Error\n",
			nil
	}, warn)
	if gpus[0].UUID != "GPU-a" || gpus[1].UUID != "GPU-b" || gpus[2].UUID != "" || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "0000:ca:00.0") {
		t.Errorf("%v, %v", warnings, gpus)
	}
}

func FuzzParseGPU(f *testing.F) {
	f.Add(information("NVIDIA L40S", unknownUUID, "0000:17:00.0", "0"))
	f.Fuzz(func(t *testing.T, text string) {
		if gpu, _ := parseGPU(text); gpu.Minor < -1 || strings.Contains(gpu.UUID, "?") {
			t.Errorf("%+v", gpu)
		}
	})
}

func FuzzParseSMI(f *testing.F) {
	f.Add("00000000:17:00.0, GPU-a\n")
	f.Fuzz(func(t *testing.T, s string) {
		for bus, uuid := range parseSMI(s) {
			if _, err := pci.Parse(bus); err != nil || !strings.HasPrefix(uuid, "GPU-") {
				t.Errorf("%q: %q", bus, uuid)
			}
		}
	})
}

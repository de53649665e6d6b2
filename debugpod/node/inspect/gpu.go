package inspect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/pci"
)

// readGPUs returns the GPUs that the driver manages, in the order of their PCI addresses. NVML and nvidia-smi number
// them in the same order.
func readGPUs(root fs.FS, warn func(string, ...any)) []api.GPU {
	const dir = "proc/driver/nvidia/gpus"
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			warn("list the GPUs: %v", err)
		}
		return nil
	}
	type found struct {
		api.GPU
		at pci.Address
	}
	var all []found
	for _, e := range entries {
		raw, err := fs.ReadFile(root, dir+"/"+e.Name()+"/information")
		if err != nil {
			warn("read the driver's information about GPU %s: %v", e.Name(), err)
		}
		gpu, excluded := parseGPU(string(raw))
		if excluded {
			warn("GPU %s is excluded (NVreg_ExcludedGpus) and therefore has no number", e.Name())
			continue
		}
		if gpu.PCI == "" {
			gpu.PCI = e.Name() // the directory name is the PCI address
		}
		at, err := pci.Parse(gpu.PCI)
		if err != nil {
			warn("GPU %s is omitted: %v", e.Name(), err)
			continue
		}
		gpu.PCI = at.String()
		gpu.DeviceID = deviceID(root, gpu.PCI)
		all = append(all, found{gpu, at})
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.at, b.at) })
	gpus := make([]api.GPU, len(all))
	for i, f := range all {
		gpus[i] = f.GPU
		gpus[i].Index = i
	}
	return gpus
}

// deviceID returns the vendor and device ID of a PCI device, such as 10de:2330. It returns "" if sysfs does not contain
// them, for example after a GPU has fallen off the bus.
func deviceID(root fs.FS, address string) string {
	var ids [2]string
	for i, name := range []string{"vendor", "device"} {
		raw, err := fs.ReadFile(root, "sys/bus/pci/devices/"+address+"/"+name)
		if err != nil {
			return ""
		}
		id, found := strings.CutPrefix(strings.TrimSpace(string(raw)), "0x")
		if _, err := strconv.ParseUint(id, 16, 16); err != nil || !found || len(id) != 4 {
			return ""
		}
		ids[i] = strings.ToLower(id)
	}
	return ids[0] + ":" + ids[1]
}

// parseGPU parses /proc/driver/nvidia/gpus/*/information, which consists of lines of the form "Name: value". If a GPU
// has not been used since boot, its UUID consists of question marks.
func parseGPU(text string) (gpu api.GPU, excluded bool) {
	gpu.Minor = -1
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "Model":
			gpu.Model = value
		case "GPU UUID":
			if !strings.Contains(value, "?") {
				gpu.UUID = value
			}
		case "Bus Location":
			gpu.PCI = value
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 20); err == nil {
				gpu.Minor = int(n)
			}
		case "GPU Excluded":
			excluded = value == "Yes"
		}
	}
	return gpu, excluded
}

// smiTimeout is the timeout for nvidia-smi, which takes several seconds without persistence mode and hangs if a GPU
// is broken.
const smiTimeout = 8 * time.Second

// nvidiaSMI runs the node's nvidia-smi and returns the PCI address and UUID of every GPU.
func nvidiaSMI(ctx context.Context, root string) (string, error) {
	c, ok := driver.Program(hostfs.FS(root), "nvidia-smi")
	if !ok {
		return "", errors.New("not found in the usual directories")
	}
	c.Args, c.Limit, c.Most = []string{"--query-gpu=pci.bus_id,uuid", "--format=csv,noheader"}, smiTimeout, 1<<20
	return hostexec.Run(ctx, c)
}

// completeUUIDs uses nvidia-smi to add the UUIDs that are missing from the driver's files.
func completeUUIDs(gpus []api.GPU, smi func() (string, error), warn func(string, ...any)) {
	if !slices.ContainsFunc(gpus, func(g api.GPU) bool { return g.UUID == "" }) {
		return
	}
	out, err := smi()
	if err != nil {
		warn("the driver does not report the UUID of a GPU before its first use, and nvidia-smi failed: %v", err)
		return
	}
	known := parseSMI(out)
	for i := range gpus {
		if gpus[i].UUID != "" {
			continue
		}
		if gpus[i].UUID = known[gpus[i].PCI]; gpus[i].UUID == "" {
			warn("neither the driver nor nvidia-smi reports the UUID of the GPU at %s", gpus[i].PCI)
		}
	}
}

// parseSMI parses the output of `nvidia-smi --query-gpu=pci.bus_id,uuid --format=csv,noheader`. It returns the UUIDs by
// PCI address.
func parseSMI(out string) map[string]string {
	known := map[string]string{}
	for line := range strings.Lines(out) {
		bus, uuid, _ := strings.Cut(line, ",")
		at, err := pci.Parse(strings.TrimSpace(bus))
		if uuid = strings.TrimSpace(uuid); err == nil && strings.HasPrefix(uuid, "GPU-") {
			known[at.String()] = uuid
		}
	}
	return known
}

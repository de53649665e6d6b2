// Package inventory is the one place that knows which simulated GPUs each node of
// the test cluster has.
package inventory

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// What the capture that nvidia-smi answers from was taken with.
const (
	Driver  = "590.48.01"
	CUDA    = "13.1"
	Model   = "NVIDIA H200"
	Memory  = "143771" // MiB
	VBIOS   = "96.00.A5.00.03"
	PerNode = 2
)

// GPU is one simulated GPU.
type GPU struct {
	PCI   string // as the driver writes it in XID lines: 0000:17:00
	UUID  string // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
	Index int    // nvidia-smi's: PCI order
	Minor int    // of /dev/nvidiaN
}

// Node is one node with its GPUs in PCI order.
type Node struct {
	Name         string
	ControlPlane bool
	GPUs         []GPU
}

// Of returns the node of the given name, node-a to node-j, with its GPUs in the given PCI domain, four hexadecimal
// digits. Each cluster has a domain of its own, as all clusters of a machine share one kernel log.
func Of(name, domain string) (Node, error) {
	if len(domain) != 4 || strings.Trim(domain, "0123456789abcdef") != "" {
		return Node{}, fmt.Errorf("PCI domain %q: must be four hexadecimal digits, such as 0000", domain)
	}
	if len(name) != len("node-a") || !strings.HasPrefix(name, "node-") || name[5] < 'a' || name[5] > 'j' {
		return Node{}, fmt.Errorf("%q: nodes are called node-a to node-j", name)
	}
	i := int(name[5] - 'a')
	n := Node{Name: name, ControlPlane: i == 0}
	for j := range PerNode {
		minor := j
		// Device minors follow the order in which the driver probed the GPUs, not
		// that of the bus. On every second node they differ.
		if i%2 == 1 {
			minor = PerNode - 1 - j
		}
		n.GPUs = append(n.GPUs, GPU{
			PCI:   fmt.Sprintf("%s:%02x:00", domain, 0x17+i*0x18+j*0x08),
			UUID:  uuid(fmt.Sprintf("gpu-fault %s %d", name, j)),
			Index: j,
			Minor: minor,
		})
	}
	return n, nil
}

// uuid returns the same for the same seed, and a valid UUID (version 5).
func uuid(seed string) string {
	b := sha256.Sum256([]byte(seed))
	b[6], b[8] = b[6]&0x0f|0x50, b[8]&0x3f|0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// BusPattern returns a regular expression for the node's GPUs in XID lines.
func (n Node) BusPattern() string {
	var all []string
	for _, g := range n.GPUs {
		all = append(all, g.PCI)
	}
	return strings.Join(all, "|")
}

// Labels returns those that GPU feature discovery gives a node with these GPUs.
func (n Node) Labels() []string {
	d, c := strings.Split(Driver, "."), strings.Split(CUDA, ".")
	labels := [][2]string{
		{"cuda.driver.major", d[0]}, {"cuda.driver.minor", d[1]}, {"cuda.driver.rev", d[2]},
		{"cuda.driver-version.full", Driver}, {"cuda.driver-version.major", d[0]},
		{"cuda.driver-version.minor", d[1]}, {"cuda.driver-version.revision", d[2]},
		{"cuda.runtime.major", c[0]}, {"cuda.runtime.minor", c[1]},
		{"cuda.runtime-version.full", CUDA}, {"cuda.runtime-version.major", c[0]}, {"cuda.runtime-version.minor", c[1]},
		{"gpu.present", "true"}, {"gpu.count", fmt.Sprint(PerNode)}, {"gpu.replicas", "1"},
		{"gpu.product", strings.ReplaceAll(Model, " ", "-")}, {"gpu.family", "hopper"}, {"gpu.memory", Memory},
		{"gpu.compute.major", "9"}, {"gpu.compute.minor", "0"}, {"gpu.machine", "Simulated-GPU-Server"},
		{"gpu.mode", "compute"}, {"gpu.sharing-strategy", "none"},
		{"mig.capable", "true"}, {"mig.strategy", "single"}, {"mps.capable", "false"}, {"vgpu.present", "false"},
	}
	out := make([]string, len(labels))
	for i, l := range labels {
		out[i] = "nvidia.com/" + l[0] + "=" + l[1]
	}
	return out
}

// WriteDriver writes what the driver shows below /proc/driver into dir. The layout is
// that of nv-procfs.c in NVIDIA's open kernel modules.
func (n Node) WriteDriver(dir string) error {
	files := map[string]string{
		"nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + Driver +
			"  Release Build  (simulated@gpu-fault)  Mon Dec  8 12:00:00 UTC 2025\n" +
			"GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2) \n",
	}
	for _, g := range n.GPUs {
		files["nvidia/gpus/"+g.PCI+".0/information"] = fmt.Sprintf("Model: \t\t %s\n"+
			"IRQ:   \t\t %d\n"+
			"GPU UUID: \t %s\n"+
			"Video BIOS: \t %s\n"+
			"Bus Type: \t PCIe\n"+
			"DMA Size: \t 52 bits\n"+
			"DMA Mask: \t 0xfffffffffffff\n"+
			"Bus Location: \t %s.0\n"+
			"Device Minor: \t %d\n"+
			"GPU Firmware: \t %s\n"+
			"GPU Excluded:\t No\n", Model, 180+g.Minor, g.UUID, strings.ToLower(VBIOS), g.PCI, g.Minor, Driver)
	}
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o555); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(text), 0o444); err != nil {
			return err
		}
	}
	return nil
}

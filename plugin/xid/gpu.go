package xid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// gpuChoice is what --gpu asks for: exactly one of its fields is set.
type gpuChoice struct {
	all   bool
	index int // -1: not by index
	uuid  string
	pci   *xid.PCI
}

// gpu is one GPU to report an XID for.
type gpu struct {
	pci  xid.PCI
	uuid string // empty when the node has no driver
}

// parseGPU understands an index, a UUID, a PCI address and "all".
func parseGPU(text string) (gpuChoice, error) {
	choice := gpuChoice{index: -1}
	switch {
	case text == "all":
		choice.all = true
	case strings.HasPrefix(text, "MIG-"):
		return choice, fmt.Errorf("--gpu %s is a MIG device: give the GPU's own UUID (`nvidia-smi -L` lists both)", text)
	case strings.HasPrefix(strings.ToUpper(text), "GPU-"):
		uuid, err := xid.ParseUUID(text)
		if err != nil {
			return choice, fmt.Errorf("--gpu %s: %w", text, err)
		}
		choice.uuid = string(uuid)
	case strings.Contains(text, ":"):
		pci, err := xid.ParsePCI(text)
		if err != nil {
			return choice, fmt.Errorf("--gpu %s: %w", text, err)
		}
		choice.pci = &pci
	default:
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return choice, fmt.Errorf("--gpu %q is none of these: an index as nvidia-smi counts (0), a UUID (GPU-...), a PCI address (0000:17:00), all", text)
		}
		choice.index = n
	}
	return choice, nil
}

// pick returns the GPUs that the choice means on a node. podUID, if any, limits it to the GPUs that this pod holds.
func (c gpuChoice) pick(nodeName string, info node.Info, podUID string) ([]gpu, error) {
	known, err := gpusOf(info)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", nodeName, err)
	}
	if podUID != "" {
		if known, err = heldBy(known, info.Pods[podUID]); err != nil {
			return nil, fmt.Errorf("node %s: %w", nodeName, err)
		}
	}
	if len(known) == 0 {
		if c.pci != nil {
			return []gpu{{pci: *c.pci}}, nil // no driver: the user says where the GPU would sit
		}
		return nil, fmt.Errorf("node %s has no GPU that the NVIDIA driver knows: to write for one that is not there, give its PCI address: --gpu 0000:17:00", nodeName)
	}
	if c.all {
		return known, nil
	}
	for i, g := range known {
		switch {
		case c.index == i, c.uuid != "" && strings.EqualFold(c.uuid, g.uuid), c.pci != nil && c.pci.String() == g.pci.String():
			return []gpu{g}, nil
		}
	}
	return nil, fmt.Errorf("node %s has no GPU %s; it has:\n%s", nodeName, c, describe(known))
}

func (c gpuChoice) String() string {
	switch {
	case c.all:
		return "all"
	case c.uuid != "":
		return c.uuid
	case c.pci != nil:
		return c.pci.String()
	default:
		return strconv.Itoa(c.index)
	}
}

// gpusOf returns the node's GPUs in nvidia-smi's order.
func gpusOf(info node.Info) ([]gpu, error) {
	known := make([]gpu, len(info.GPUs))
	for i, g := range info.GPUs {
		pci, err := xid.ParsePCI(g.PCI)
		if err != nil {
			return nil, fmt.Errorf("the driver's PCI address %q: %w", g.PCI, err)
		}
		known[i] = gpu{pci: pci, uuid: g.UUID}
	}
	return known, nil
}

func heldBy(known []gpu, use node.PodUse) ([]gpu, error) {
	if len(use.GPUs) == 0 {
		return nil, errors.New("the pod holds no GPU: the kubelet's device checkpoint has no nvidia.com device for it")
	}
	var held []gpu
	for _, g := range known {
		for _, uuid := range use.GPUs {
			if strings.EqualFold(uuid, g.uuid) {
				held = append(held, g)
			}
		}
	}
	if len(held) == 0 {
		return nil, fmt.Errorf("the pod holds %s, which the driver does not list as a GPU (a MIG device?): name the GPU with --gpu and the node instead", strings.Join(use.GPUs, ", "))
	}
	return held, nil
}

func describe(all []gpu) string {
	lines := make([]string, len(all))
	for i, g := range all {
		lines[i] = strings.TrimRight(fmt.Sprintf("  %d  %s  %s", i, g.pci, g.uuid), " ")
	}
	return strings.Join(lines, "\n")
}

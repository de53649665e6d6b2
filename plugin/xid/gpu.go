package xid

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// gpuChoice is one element of --gpu. Exactly one field is set.
type gpuChoice struct {
	all   bool
	index int // -1 means not set
	uuid  string
	pci   *xid.PCI
}

// gpuChoices is the value of --gpu, a comma-separated list.
type gpuChoices []gpuChoice

// gpu is a GPU for which to report an XID.
type gpu struct {
	pci  xid.PCI
	uuid string // empty if the node has no driver
}

// parseGPUs parses a list such as 0,GPU-...,0000:17:00, or "all".
func parseGPUs(text string) (gpuChoices, error) {
	var all gpuChoices
	for word := range strings.SplitSeq(text, ",") {
		choice, err := parseGPU(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		all = append(all, choice)
	}
	return all, nil
}

// parseGPU parses an index, a UUID, a PCI address or "all".
func parseGPU(text string) (gpuChoice, error) {
	choice := gpuChoice{index: -1}
	switch {
	case text == "all":
		choice.all = true
	case strings.HasPrefix(text, "MIG-"):
		return choice,
			fmt.Errorf("--gpu %s is a MIG device: give the GPU's own UUID (`nvidia-smi -L` lists both)", text)
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
			return choice, fmt.Errorf(
				"--gpu %q is none of these: an index as nvidia-smi counts (0), a UUID (GPU-...), a PCI address (0000:17:00), all",
				text,
			)
		}
		choice.index = n
	}
	return choice, nil
}

// podOnNode is the pod of --pod. The zero value means no pod.
type podOnNode struct{ namespace, name, uid string }

func (p podOnNode) String() string { return "pod " + p.namespace + "/" + p.name }

// pick returns the selected GPUs of the node, or of the pod if one is set, without duplicates.
func (cs gpuChoices) pick(info api.Info, pod podOnNode) ([]gpu, error) {
	known, err := gpusOf(info)
	if err != nil {
		return nil, err
	}
	if pod.uid != "" {
		if known, err = pod.held(known, info.Pods[pod.uid]); err != nil {
			return nil, err
		}
	}
	var picked []gpu
	for _, c := range cs {
		some, err := c.among(known, pod)
		if err != nil {
			return nil, err
		}
		for _, g := range some {
			if !slices.Contains(picked, g) {
				picked = append(picked, g)
			}
		}
	}
	return picked, nil
}

func (c gpuChoice) among(known []gpu, pod podOnNode) ([]gpu, error) {
	if len(known) == 0 {
		if c.pci != nil {
			return []gpu{{pci: *c.pci}}, nil // without a driver, the user specifies the GPU's address
		}
		return nil, errors.New(
			"there is no GPU that the NVIDIA driver knows: to write for one that is not there, give its PCI address: --gpu 0000:17:00",
		)
	}
	if c.all {
		return known, nil
	}
	for i, g := range known {
		switch {
		case c.index == i, c.uuid != "" && strings.EqualFold(c.uuid, g.uuid),
			c.pci != nil && c.pci.String() == g.pci.String():
			return []gpu{g}, nil
		}
	}
	if pod.uid != "" {
		return nil, fmt.Errorf("%s holds no GPU %s; it holds:\n%s", pod, c, describe(known))
	}
	return nil, fmt.Errorf("there is no GPU %s; there are:\n%s", c, describe(known))
}

// address returns the PCI address if the choice is a single PCI address, and nil otherwise.
func (cs gpuChoices) address() *xid.PCI {
	if len(cs) != 1 {
		return nil
	}
	return cs[0].pci
}

// atMost returns the maximum number of a node's GPUs that the choices can select.
func (cs gpuChoices) atMost() int {
	n := len(cs)
	for _, c := range cs {
		if c.all {
			n = 16 // the number of GPUs in the largest machines
		}
	}
	return n
}

func (cs gpuChoices) String() string {
	words := make([]string, len(cs))
	for i, c := range cs {
		if c.all {
			return "every GPU"
		}
		words[i] = c.String()
	}
	if len(words) == 1 {
		return "GPU " + words[0]
	}
	return "GPUs " + strings.Join(words, ", ")
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
func gpusOf(info api.Info) ([]gpu, error) {
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

// held returns the GPUs that the pod holds.
func (p podOnNode) held(known []gpu, use api.PodUse) ([]gpu, error) {
	if len(use.GPUs) == 0 {
		return nil, fmt.Errorf("%s holds no GPU: the kubelet's device checkpoint has no nvidia.com device for it", p)
	}
	var held []gpu
	for _, g := range known {
		if slices.ContainsFunc(use.GPUs, func(uuid string) bool { return strings.EqualFold(uuid, g.uuid) }) {
			held = append(held, g)
		}
	}
	if len(held) == 0 {
		return nil, fmt.Errorf(
			"%s holds %s, which the driver does not list as a GPU (a MIG device?): name the GPU with --gpu and the node instead",
			p, strings.Join(use.GPUs, ", "),
		)
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

// Package gpus implements --gpu, which selects GPUs on a node.
package gpus

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// choice is one element of --gpu. Exactly one field is set.
type choice struct {
	all   bool
	index int // -1 means not set
	uuid  string
	pci   *xid.PCI
}

// Choices is the value of --gpu, a comma-separated list.
type Choices []choice

// GPU is a GPU on a node.
type GPU struct {
	PCI  xid.PCI
	UUID string // empty if the node has no driver
	// DeviceID is the PCI vendor and device ID, such as 10de:2330, or "" if unknown.
	DeviceID string
}

// Parse parses a list such as 0,GPU-...,0000:17:00, or "all".
func Parse(text string) (Choices, error) {
	var all Choices
	for word := range strings.SplitSeq(text, ",") {
		c, err := parse(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// parse parses an index, a UUID, a PCI address or "all".
func parse(text string) (choice, error) {
	c := choice{index: -1}
	switch {
	case text == "all":
		c.all = true
	case strings.HasPrefix(text, "MIG-"):
		return c,
			fmt.Errorf("--gpu %s is a MIG device: specify the UUID of its GPU (`nvidia-smi -L` lists both)", text)
	case strings.HasPrefix(strings.ToUpper(text), "GPU-"):
		uuid, err := xid.ParseUUID(text)
		if err != nil {
			return c, fmt.Errorf("--gpu %s: %w", text, err)
		}
		c.uuid = string(uuid)
	case strings.Contains(text, ":"):
		pci, err := xid.ParsePCI(text)
		if err != nil {
			return c, fmt.Errorf("--gpu %s: %w", text, err)
		}
		c.pci = &pci
	default:
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return c, fmt.Errorf(
				"invalid value %q for --gpu: must be an nvidia-smi index (0), a UUID (GPU-...), a PCI address (0000:17:00), or all",
				text,
			)
		}
		c.index = n
	}
	return c, nil
}

// Pod is the pod specified by --pod. The zero value means no pod.
type Pod struct{ Namespace, Name, UID string }

func (p Pod) String() string { return "pod " + p.Namespace + "/" + p.Name }

// Pick returns the selected GPUs of the node, or of the pod if one is set, without duplicates.
func (cs Choices) Pick(info api.Info, pod Pod) ([]GPU, error) {
	known, err := Of(info)
	if err != nil {
		return nil, err
	}
	if pod.UID != "" {
		if known, err = pod.held(known, info.Pods[pod.UID]); err != nil {
			return nil, err
		}
	}
	var picked []GPU
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

func (c choice) among(known []GPU, pod Pod) ([]GPU, error) {
	if len(known) == 0 {
		if c.pci != nil {
			return []GPU{{PCI: *c.pci}}, nil // without a driver, the user specifies the GPU's address
		}
		return nil, errors.New(
			"the NVIDIA driver lists no GPU on the node; to simulate a GPU, specify a PCI address, such as --gpu 0000:17:00",
		)
	}
	if c.all {
		return known, nil
	}
	for i, g := range known {
		switch {
		case c.index == i, c.uuid != "" && strings.EqualFold(c.uuid, g.UUID),
			c.pci != nil && c.pci.String() == g.PCI.String():
			return []GPU{g}, nil
		}
	}
	if pod.UID != "" {
		return nil, fmt.Errorf("%s does not hold %s; it holds:\n%s", pod, c.name(), describe(known))
	}
	return nil, fmt.Errorf("%s not found; the GPUs on the node are:\n%s", c.name(), describe(known))
}

// Indexes returns the indexes without duplicates. all means every GPU. ok is false if a GPU is selected by its UUID or
// address.
func (cs Choices) Indexes() (indexes []int, all, ok bool) {
	for _, c := range cs {
		switch {
		case c.all:
			all = true
		case c.uuid != "" || c.pci != nil:
			return nil, false, false
		case !slices.Contains(indexes, c.index):
			indexes = append(indexes, c.index)
		}
	}
	return indexes, all, true
}

// Address returns the PCI address if the choice is a single PCI address, and nil otherwise.
func (cs Choices) Address() *xid.PCI {
	if len(cs) != 1 {
		return nil
	}
	return cs[0].pci
}

// AtMost returns the maximum number of a node's GPUs that the choices can select.
func (cs Choices) AtMost() int {
	n := len(cs)
	for _, c := range cs {
		if c.all {
			n = 16 // the number of GPUs in the largest machines
		}
	}
	return n
}

func (cs Choices) String() string {
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

// name returns the choice for use in a sentence.
func (c choice) name() string {
	if c.uuid != "" {
		return c.uuid
	}
	return "GPU " + c.String()
}

func (c choice) String() string {
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

// Of returns the node's GPUs in nvidia-smi's order.
func Of(info api.Info) ([]GPU, error) {
	known := make([]GPU, len(info.GPUs))
	for i, g := range info.GPUs {
		pci, err := xid.ParsePCI(g.PCI)
		if err != nil {
			return nil, fmt.Errorf("the driver's PCI address %q: %w", g.PCI, err)
		}
		known[i] = GPU{PCI: pci, UUID: g.UUID, DeviceID: g.DeviceID}
	}
	return known, nil
}

// held returns the GPUs that the pod holds.
func (p Pod) held(known []GPU, use api.PodUse) ([]GPU, error) {
	if len(use.GPUs) == 0 {
		return nil, fmt.Errorf("%s holds no GPU: the kubelet's device checkpoint lists no nvidia.com device for the pod", p)
	}
	var held []GPU
	for _, g := range known {
		if slices.ContainsFunc(use.GPUs, func(uuid string) bool { return strings.EqualFold(uuid, g.UUID) }) {
			held = append(held, g)
		}
	}
	if len(held) == 0 {
		return nil, fmt.Errorf(
			"%s holds %s, which the driver does not list as a GPU; if it is a MIG device, specify the node and --gpu instead",
			p, strings.Join(use.GPUs, ", "),
		)
	}
	return held, nil
}

func describe(all []GPU) string {
	lines := make([]string, len(all))
	for i, g := range all {
		lines[i] = strings.TrimRight(fmt.Sprintf("  %d  %s  %s", i, g.PCI, g.UUID), " ")
	}
	return strings.Join(lines, "\n")
}

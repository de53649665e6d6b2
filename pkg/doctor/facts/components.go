package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Component is a part of the GPU software stack that runs in pods.
type Component string

// The components.
const (
	Driver           Component = "driver"
	Toolkit          Component = "toolkit"
	DevicePlugin     Component = "device plugin"
	FeatureDiscovery Component = "GPU feature discovery"
	DCGMExporter     Component = "dcgm-exporter"
	DCGM             Component = "dcgm"
	MIGManager       Component = "MIG manager"
	MPS              Component = "MPS control daemon"
	Validator        Component = "operator validator"
	Operator         Component = "GPU operator"
	NFD              Component = "node feature discovery"
	DRADriver        Component = "DRA driver"
)

// componentNames are substrings of component names, most specific first.
var componentNames = []struct {
	part string
	is   Component
}{
	{"node-feature-discovery", NFD}, // first, because the name of a release may precede it: nvidia-device-plugin-
	{"device-plugin-validator", Validator}, {"cuda-validator", Validator}, {"mps-control-daemon", MPS},
	{"dra-driver", DRADriver}, {"gpu-feature-discovery", FeatureDiscovery},
	{"device-plugin", DevicePlugin}, {"container-toolkit", Toolkit}, {"dcgm-exporter", DCGMExporter},
	{"nvidia-dcgm", DCGM}, {"mig-manager", MIGManager},
	{"operator-validator", Validator}, {"nvidia-driver", Driver}, {"nvidia-vgpu-manager", Driver},
	{"gpu-operator", Operator},
}

// componentLabels are the labels that contain the name of a pod's component.
var componentLabels = []string{"app", "app.kubernetes.io/component", "app.kubernetes.io/name", "k8s-app", "name"}

// ComponentOf returns the component that a pod or DaemonSet belongs to, based on its labels and images, or "" if there
// is none.
func ComponentOf(labels map[string]string, spec *corev1.PodSpec) Component {
	names := make([]string, 0, 16)
	add := func(name string) {
		if name != "" && !strings.Contains(name, "-validation") { // not an operator pod that tests the component
			names = append(names, name)
		}
	}
	for _, label := range componentLabels {
		add(labels[label])
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		image, _, _ := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":")
		add(image) // the device plugin's image also contains GPU feature discovery and MPS
		add(c.Name)
	}
	for _, known := range componentNames {
		for _, name := range names {
			if strings.Contains(name, known.part) &&
				(!slices.Contains([]Component{DevicePlugin, Operator, DRADriver}, known.is) || nvidias(names, spec)) {
				return known.is
			}
		}
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if strings.Contains(c.Image, "nvidia/driver:") || strings.Contains(c.Image, "nvidia/vgpu-manager:") {
			return Driver
		}
	}
	return ""
}

// nvidias reports whether a device plugin, operator or DRA driver is NVIDIA's rather than another vendor's component
// with the same name. If no vendor is named, as in some names of mirrored images, the component is considered NVIDIA's.
func nvidias(names []string, spec *corev1.PodSpec) bool {
	all := slices.Clone(names)
	for _, c := range spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		all = append(all, image)
	}
	words := strings.FieldsFunc(strings.ToLower(strings.Join(all, " ")),
		func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	has := func(some ...string) bool {
		return slices.ContainsFunc(some, func(word string) bool { return slices.Contains(words, word) })
	}
	switch {
	case has("sriov", "rdma", "network"): // NVIDIA also makes network adapters
		return false
	case has("nvidia"):
		return true
	case has(otherVendors...), has("rocm", "habanalabs", "habanaai", "cpu", "npu", "fpga", "xilinx", "mlu", "dcu"):
		return false
	}
	return has("gpu", "hami") // HAMi's plugins for other vendors also contain the vendor's name
}

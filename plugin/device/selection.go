package device

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

// selection selects devices on a node by their IDs, by GPUs, or by the pod that holds them.
type selection struct {
	resource string // empty means the default
	devices  []string
	gpus     gpus.Choices
	pod      gpus.Pod // of --pod
}

// defaultResource is the resource to use if a node has several.
const defaultResource = "nvidia.com/gpu"

// choose returns the resource and the IDs of the selected devices.
func (s selection) choose(info api.Info, found api.Devices) (resource string, ids []string, err error) {
	r, err := s.resourceOf(found)
	if err != nil {
		return "", nil, err
	}
	known := slices.Concat(r.Healthy, r.Unhealthy)
	slices.Sort(known)
	if s.pod.UID != "" {
		known = slices.DeleteFunc(known, func(id string) bool { return r.Pods[id] != s.pod.UID })
		if len(known) == 0 {
			return "", nil, fmt.Errorf("the pod holds no device of %s", r.Name)
		}
	}
	switch {
	case len(s.devices) > 0:
		ids = s.devices
		for _, id := range ids {
			if !slices.Contains(known, id) {
				return "", nil, fmt.Errorf("device %s of %s not found; the devices are: %s", id, r.Name, list(known))
			}
		}
	case len(s.gpus) > 0:
		if ids, err = s.ofGPUs(info, r.Name, known); err != nil {
			return "", nil, err
		}
	default:
		ids = known
	}
	for _, id := range ids {
		if slices.Contains(r.Unhealthy, id) && r.Failed[id] == "" {
			return "", nil, &NoDeviceError{"device " + id, r.Name, list(r.Healthy)}
		}
	}
	return r.Name, slices.Compact(slices.Sorted(slices.Values(ids))), nil
}

// resourceOf returns the selected resource.
func (s selection) resourceOf(found api.Devices) (api.DeviceResource, error) {
	var names, held []string
	for _, r := range found.Resources {
		names = append(names, r.Name)
		for _, uid := range r.Pods {
			if uid == s.pod.UID && s.pod.UID != "" && !slices.Contains(held, r.Name) {
				held = append(held, r.Name)
			}
		}
	}
	name := s.resource
	switch {
	case name != "":
	case len(held) == 1:
		name = held[0]
	case len(names) == 1:
		name = names[0]
	default:
		name = defaultResource
	}
	for _, r := range found.Resources {
		if r.Name == name {
			return r, nil
		}
	}
	switch {
	case len(names) == 0:
		return api.DeviceResource{}, errors.New(strings.Join(
			append([]string{"no device plugin has registered devices on the node (for devices of a DRA driver, use " +
				"`kubectl gpu-fault device taint`)"}, found.Warnings...), ": "))
	case s.resource == "":
		return api.DeviceResource{}, fmt.Errorf("the node has several resources, but not %s: specify --resource %s",
			defaultResource, strings.Join(names, ", or --resource "))
	}
	return api.DeviceResource{}, fmt.Errorf(
		"the node has no devices of %s; it has: %s",
		name,
		strings.Join(names, ", "),
	)
}

// ofGPUs returns the devices on the selected GPUs. A shared GPU has several devices.
func (s selection) ofGPUs(info api.Info, resource string, known []string) (ids []string, err error) {
	if len(info.GPUs) == 0 {
		return nil, fmt.Errorf("the node has no NVIDIA driver that lists GPUs: specify --device; the devices are: %s",
			list(known))
	}
	all, err := gpus.Of(info)
	if err != nil {
		return nil, err
	}
	if s.pod.UID != "" { // known lists the devices that the pod holds
		var use api.PodUse
		for _, id := range known {
			if at := indexOf(id, info.GPUs); at != nil {
				use.GPUs = append(use.GPUs, all[*at].UUID)
			}
		}
		if len(use.GPUs) == 0 {
			return nil, fmt.Errorf("%s does not hold a whole GPU: specify --device; its devices are: %s", s.pod, list(known))
		}
		info.Pods = map[string]api.PodUse{s.pod.UID: use}
	}
	picked, err := s.gpus.Pick(info, s.pod)
	if err != nil {
		return nil, err
	}
	for _, g := range picked {
		index := slices.Index(all, g)
		of := slices.DeleteFunc(slices.Clone(known), func(id string) bool {
			at := indexOf(id, info.GPUs)
			return at == nil || *at != index
		})
		if len(of) == 0 {
			return nil, &NoDeviceError{fmt.Sprintf("GPU %d (%s)", index, g.UUID), resource, list(known)}
		}
		ids = append(ids, of...)
	}
	return ids, nil
}

// NoDeviceError reports that the kubelet has no healthy device for a GPU. The kubelet does not keep track of unhealthy
// devices that no pod holds.
type NoDeviceError struct{ GPU, resource, known string }

func (e *NoDeviceError) Error() string {
	return fmt.Sprintf("the kubelet has no healthy device of %s for %s; specify --device; the devices are: %s", e.resource,
		e.GPU, e.known)
}

// indexOf returns the index of a device's GPU, or nil if the index is unknown. NVIDIA's device plugin uses the UUID or
// the index of the GPU as the ID, depending on its settings. IDs of shared GPUs have a suffix, such as ::1. The ID of a
// MIG device does not identify the GPU.
func indexOf(id string, all []api.GPU) *int {
	base, _, _ := strings.Cut(id, "::")
	for i, g := range all {
		if strings.EqualFold(base, g.UUID) && g.UUID != "" || base == strconv.Itoa(i) {
			return &i
		}
	}
	return nil
}

// list formats IDs for use in a sentence.
func list(ids []string) string {
	const most = 16
	if len(ids) > most {
		return fmt.Sprintf("%s, and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

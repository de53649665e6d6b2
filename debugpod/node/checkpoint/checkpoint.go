// Package checkpoint parses the file in which the kubelet's device manager records devices and the pods that hold them.
// The kubelet rewrites the file on every message from a device plugin (see pkg/kubelet/cm/devicemanager/checkpoint in
// Kubernetes).
package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Dir is the directory of the file and of the device plugins' sockets. It is the same for all kubelets.
const Dir = "/var/lib/kubelet/device-plugins"

// Name is the name of the file in Dir.
const Name = "kubelet_internal_checkpoint"

// Checkpoint is the content of the file.
type Checkpoint struct {
	// Healthy contains the sorted IDs of the healthy devices, by resource.
	Healthy map[string][]string
	Entries []Entry
}

// Entry contains the devices of a resource that a container in a pod holds.
type Entry struct {
	PodUID, Resource string
	Devices          []string // IDs
}

// Parse parses the file.
func Parse(raw []byte) (Checkpoint, error) {
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID       string
				ResourceName string
				DeviceIDs    json.RawMessage
			}
			RegisteredDevices map[string][]string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{Healthy: file.Data.RegisteredDevices}
	for _, ids := range c.Healthy {
		slices.Sort(ids)
	}
	for _, e := range file.Data.PodDeviceEntries {
		ids, err := deviceIDs(e.DeviceIDs)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("parse the devices of pod %s: %w", e.PodUID, err)
		}
		c.Entries = append(c.Entries, Entry{e.PodUID, e.ResourceName, ids})
	}
	return c, nil
}

// deviceIDs parses lists of device IDs by NUMA node or, before Kubernetes 1.20, a single list.
func deviceIDs(raw json.RawMessage) ([]string, error) {
	var list []string
	if len(raw) == 0 || json.Unmarshal(raw, &list) == nil {
		return list, nil
	}
	var byNUMA map[string][]string
	if err := json.Unmarshal(raw, &byNUMA); err != nil {
		return nil, err
	}
	for _, ids := range byNUMA {
		list = append(list, ids...)
	}
	return list, nil
}

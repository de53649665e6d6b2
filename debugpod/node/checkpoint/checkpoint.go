// Package checkpoint parses the file in which the kubelet's device manager records devices and the pods that hold them.
// The kubelet rewrites it at every message of a device plugin (see pkg/kubelet/cm/devicemanager/checkpoint in
// Kubernetes).
package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Dir is the directory of the file and of the sockets of device plugins, which is the same for all kubelets.
const Dir = "/var/lib/kubelet/device-plugins"

// Name is the name of the file in Dir.
const Name = "kubelet_internal_checkpoint"

// Checkpoint is the content of the file.
type Checkpoint struct {
	// Healthy are the IDs of the healthy devices by resource, sorted.
	Healthy map[string][]string
	Entries []Entry
}

// Entry has devices of a resource that a container of a pod holds.
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
			return Checkpoint{}, fmt.Errorf("devices of pod %s: %w", e.PodUID, err)
		}
		c.Entries = append(c.Entries, Entry{e.PodUID, e.ResourceName, ids})
	}
	return c, nil
}

// deviceIDs parses lists of device IDs by NUMA node or, before Kubernetes 1.20, one list.
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

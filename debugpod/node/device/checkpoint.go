package device

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// checkpoint is what the kubelet's device manager has recorded (see pkg/kubelet/cm/devicemanager/checkpoint in
// Kubernetes). It rewrites the file at every message of a device plugin.
type checkpoint struct {
	healthy map[string][]string // IDs of healthy devices by resource, sorted
	// held are the UIDs of pods by resource and device ID.
	held map[string]map[string]string
}

func readCheckpoint(path string) (checkpoint, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return checkpoint{}, err
	}
	c, err := parseCheckpoint(raw)
	if err != nil {
		err = fmt.Errorf("parse %s: %w", path, err)
	}
	return c, err
}

func parseCheckpoint(raw []byte) (checkpoint, error) {
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
		return checkpoint{}, err
	}
	c := checkpoint{healthy: file.Data.RegisteredDevices, held: map[string]map[string]string{}}
	for _, ids := range c.healthy {
		slices.Sort(ids)
	}
	for _, entry := range file.Data.PodDeviceEntries {
		ids, err := deviceIDs(entry.DeviceIDs)
		if err != nil {
			return checkpoint{}, fmt.Errorf("devices of pod %s: %w", entry.PodUID, err)
		}
		if c.held[entry.ResourceName] == nil {
			c.held[entry.ResourceName] = map[string]string{}
		}
		for _, id := range ids {
			c.held[entry.ResourceName][id] = entry.PodUID
		}
	}
	return c, nil
}

// deviceIDs decodes the IDs of an entry: by NUMA node, or a list before Kubernetes 1.20.
func deviceIDs(raw json.RawMessage) ([]string, error) {
	var list []string
	if len(raw) == 0 || json.Unmarshal(raw, &list) == nil {
		return list, nil
	}
	var byNode map[string][]string
	if err := json.Unmarshal(raw, &byNode); err != nil {
		return nil, err
	}
	for _, ids := range byNode {
		list = append(list, ids...)
	}
	return list, nil
}

package api

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// ListDevices requests the devices that device plugins have registered with the kubelet. It changes nothing.
type ListDevices struct{}

// Devices is the response to ListDevices, keyed by resource name.
type Devices struct {
	Resources []DeviceResource `json:"resources,omitempty"`
	// Warnings describe what could not be read, and why.
	Warnings []string `json:"warnings,omitempty"`
}

// DeviceResource contains the devices of a resource, according to the kubelet's checkpoint.
type DeviceResource struct {
	Name string `json:"name"` // such as nvidia.com/gpu
	// Healthy contains the IDs of the healthy devices. Unhealthy contains the IDs of the other known devices; the
	// kubelet records only healthy devices, and devices held by pods. Failed contains the runs that made devices
	// unhealthy, by device ID.
	Healthy   []string          `json:"healthy,omitempty"`
	Unhealthy []string          `json:"unhealthy,omitempty"`
	Failed    map[string]string `json:"failed,omitempty"`
	// Pods contains the UIDs of the pods that hold devices, by device ID.
	Pods map[string]string `json:"pods,omitempty"`
	// Endpoint is the name of the plugin's socket. If the name is unknown, Endpoint is empty and Problem describes the
	// reason.
	Endpoint string `json:"endpoint,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

// FailDevices reports devices to the kubelet as unhealthy until the TTL expires or RecoverDevices ends the fault. It
// neither changes nor restarts anything on the node: the helper registers with the kubelet as a second plugin for the
// resource, only to report health, and then re-registers the real plugin, which remains in charge of everything else.
type FailDevices struct {
	Resource string   `json:"resource"`
	Devices  []string `json:"devices"` // IDs
	// TTL is measured by the node's clock.
	TTL time.Duration `json:"ttl"`
}

// FailedDevices is the response to FailDevices, as recorded by the kubelet.
type FailedDevices struct {
	Resource string   `json:"resource"`
	Endpoint string   `json:"endpoint"`
	Devices  []string `json:"devices"`
	// Healthy is the number of devices that are still healthy.
	Healthy int       `json:"healthy"`
	Until   time.Time `json:"until"`
	// Pods contains the UIDs of the pods that hold failed devices.
	Pods []string `json:"pods,omitempty"`
}

// RecoverDevices ends the FailDevices of the request's run. It may be repeated.
type RecoverDevices struct{}

// RecoveredDevices is the response to RecoverDevices.
type RecoveredDevices struct {
	// Found reports whether the node has a record of the run, or processes of the run. If it has neither, no device is
	// reported as failed: the fault never started, it has already ended, or the node has rebooted.
	Found bool `json:"found,omitempty"`
	// Resource is the name of the resource. It is empty if the record was deleted.
	Resource string `json:"resource,omitempty"`
	// Cause describes why the fault ended, such as "requested" or "TTL". Ended is the time at which it ended.
	Cause string    `json:"cause,omitempty"`
	Ended time.Time `json:"ended,omitzero"`
	// Healthy is the number of devices that are now healthy.
	Healthy int `json:"healthy"`
}

const (
	maxDevices   = 1024
	maxDeviceID  = 256 // bytes
	minDeviceTTL = 5 * time.Second
	maxDeviceTTL = 48 * time.Hour
)

// resourceNames matches the names of extended resources. Such a name includes a domain.
var resourceNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// Validate returns an error if the request is invalid.
func (f FailDevices) Validate() error {
	switch {
	case !resourceNames.MatchString(f.Resource) || len(f.Resource) > 253:
		return fmt.Errorf("%q is not the name of an extended resource, such as nvidia.com/gpu", f.Resource)
	case len(f.Devices) == 0:
		return errors.New("no device is specified")
	case len(f.Devices) > maxDevices:
		return fmt.Errorf("too many devices: %d, but the maximum is %d", len(f.Devices), maxDevices)
	case slices.ContainsFunc(f.Devices, func(id string) bool { return id == "" || len(id) > maxDeviceID }):
		return fmt.Errorf("a device ID must be 1 to %d bytes long", maxDeviceID)
	case f.TTL < minDeviceTTL || f.TTL > maxDeviceTTL:
		return fmt.Errorf("invalid TTL %s: must be %s to %s", f.TTL, minDeviceTTL, maxDeviceTTL)
	}
	return nil
}

package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

const (
	kubeletSocket = "kubelet.sock"
	// socketPrefix is the prefix of the names of this tool's sockets.
	socketPrefix = "gpu-fault-"
	pluginAPI    = "v1beta1" // the only version that kubelets support
	askTimeout   = 5 * time.Second
)

// list returns the resources on the node.
func (n node) list(ctx context.Context) api.Devices {
	var all api.Devices
	c, err := n.checkpoint()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		all.Warnings = append(all.Warnings, "the kubelet has no device checkpoint: no device plugin has registered")
		return all
	case err != nil:
		all.Warnings = append(all.Warnings, err.Error())
		return all
	}
	failed := map[string]map[string]string{}
	for _, r := range n.records() {
		if r.ended() {
			continue
		}
		failed[r.Resource] = map[string]string{} // each resource has at most one fault
		for _, id := range r.Devices {
			failed[r.Resource][id] = r.Run
		}
	}
	sockets, err := n.sockets()
	if err != nil {
		all.Warnings = append(all.Warnings, err.Error())
	}
	for name, healthy := range c.Healthy {
		r := api.DeviceResource{Name: name, Healthy: healthy, Pods: map[string]string{}, Failed: failed[name]}
		for _, e := range c.Entries {
			for _, id := range e.Devices {
				if e.Resource == name {
					r.Pods[id] = e.PodUID
				}
			}
		}
		for id := range r.Pods {
			if !slices.Contains(healthy, id) {
				r.Unhealthy = append(r.Unhealthy, id)
			}
		}
		for id := range r.Failed {
			if !slices.Contains(healthy, id) && !slices.Contains(r.Unhealthy, id) {
				r.Unhealthy = append(r.Unhealthy, id)
			}
		}
		slices.Sort(r.Unhealthy)
		if r.Endpoint, err = endpointOf(name, sockets, slices.Collect(maps.Keys(c.Healthy))); err != nil {
			r.Problem = err.Error()
		}
		all.Resources = append(all.Resources, r)
	}
	slices.SortFunc(all.Resources, func(a, b api.DeviceResource) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// sockets returns the names of the sockets on which a plugin listens. It omits sockets that terminated plugins left
// behind.
func (n node) sockets() ([]string, error) {
	entries, err := os.ReadDir(n.plugins)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if e.Type()&fs.ModeSocket == 0 || name == kubeletSocket || strings.HasPrefix(name, socketPrefix) {
			continue
		}
		if n.listens(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// listens reports whether a process listens on a socket.
func (n node) listens(name string) bool {
	conn, err := net.DialTimeout("unix", filepath.Join(n.plugins, name), time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// endpointOf returns the socket of a resource's plugin, given all sockets and resources on the node. The kubelet does
// not provide this information. Calling ListAndWatch would provide it, but NVIDIA's plugin never notices that a caller
// has disconnected, and passes a later health event to that caller instead of to the kubelet. The socket names that
// plugins use are known. Therefore, endpointOf chooses a socket only if its name matches, or if only one socket and one
// resource remain after all others have been matched by name.
func endpointOf(resource string, sockets, resources []string) (string, error) {
	if known := namedSocket(resource, sockets); known != "" {
		return known, nil
	}
	sockets = slices.Clone(sockets)
	unnamed := 0
	for _, other := range resources {
		known := namedSocket(other, sockets)
		if known == "" {
			unnamed++
		}
		sockets = slices.DeleteFunc(sockets, func(name string) bool { return name == known })
	}
	switch {
	case len(sockets) == 1 && unnamed == 1:
		return sockets[0], nil
	case len(sockets) == 0:
		return "", fmt.Errorf("no device plugin is listening for %s; for devices of a DRA driver, use `kubectl "+
			"gpu-fault device taint`",
			resource)
	}
	return "", fmt.Errorf("the plugin's socket for %s is unknown: none of these names match: %s", resource,
		strings.Join(sockets, ", "))
}

// namedSocket returns the socket whose name matches a resource, or "" if there is none.
func namedSocket(resource string, sockets []string) string {
	domain, name, _ := strings.Cut(resource, "/")
	vendor, _, _ := strings.Cut(domain, ".")
	for _, known := range []string{
		vendor + "-" + name + ".sock", // k8s-device-plugin: nvidia-gpu.sock, nvidia-mig-1g.10gb.sock
		domain + "_" + name,           // plugins on kubevirt/device-plugin-manager: amd.com_gpu
		domain + "-" + name + ".sock", // Intel: gpu.intel.com-i915.sock
		domain + "_" + name + ".sock",
	} {
		if slices.Contains(sockets, known) {
			return known
		}
	}
	return ""
}

// options requests the options with which a plugin registers. This also verifies that the plugin responds.
func (n node) options(ctx context.Context, endpoint string) ([]byte, error) {
	conn := rpc.NewConn(filepath.Join(n.plugins, endpoint))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil)
}

// register registers a socket with the kubelet as the plugin for a resource. The RegisterRequest has these fields:
// version = 1, endpoint = 2, resource_name = 3, options = 4. The kubelet connects to the socket before it responds.
func (n node) register(ctx context.Context, resource, endpoint string, options []byte) error {
	conn := rpc.NewConn(filepath.Join(n.plugins, kubeletSocket))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	request := rpc.Text(nil, 1, pluginAPI)
	request = rpc.Text(request, 2, endpoint)
	request = rpc.Text(request, 3, resource)
	request = rpc.Message(request, 4, options)
	_, err := conn.Call(ctx, "/v1beta1.Registration/Register", request)
	return err
}

// topologies returns the TopologyInfo of devices by ID. If the injector's messages lacked it, the kubelet would drop
// it. A kubelet without this API has no topology manager that needs the TopologyInfo.
func (n node) topologies(ctx context.Context, resource string) map[string][]byte {
	all, err := n.allocatable(ctx, resource)
	if err != nil {
		return nil
	}
	maps.DeleteFunc(all, func(_ string, topology []byte) bool { return len(topology) == 0 })
	return all
}

// allocatable returns the devices that the kubelet can allocate, which are the healthy ones, with their TopologyInfo.
// Unlike the checkpoint, they change as soon as the kubelet disconnects the plugin.
func (n node) allocatable(ctx context.Context, resource string) (map[string][]byte, error) {
	conn := rpc.NewConn(n.podResources)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, err := conn.Call(ctx, "/v1.PodResourcesLister/GetAllocatableResources", nil)
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	// The fields of AllocatableResourcesResponse: devices = 1. ContainerDevices: resource_name = 1, device_ids = 2,
	// topology = 3.
	err = rpc.Fields(reply, func(f rpc.Field) error {
		if f.Number != 1 {
			return nil
		}
		var name string
		var ids []string
		var topology []byte
		err := rpc.Fields(f.Bytes, func(f rpc.Field) error {
			switch f.Number {
			case 1:
				name = string(f.Bytes)
			case 2:
				ids = append(ids, string(f.Bytes))
			case 3:
				topology = f.Bytes
			}
			return nil
		})
		for _, id := range ids {
			if name == resource {
				found[id] = topology
			}
		}
		return err
	})
	return found, err
}

// deviceList returns a ListAndWatchResponse (devices = 1) of Devices (ID = 1, health = 2, topology = 3).
func deviceList(healthy map[string]bool, topologies map[string][]byte) []byte {
	ids := make([]string, 0, len(healthy))
	for id := range healthy {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var list []byte
	for _, id := range ids {
		health := "Unhealthy"
		if healthy[id] {
			health = "Healthy"
		}
		device := rpc.Text(rpc.Text(nil, 1, id), 2, health)
		if topology := topologies[id]; topology != nil {
			device = rpc.Message(device, 3, topology)
		}
		list = rpc.Message(list, 1, device)
	}
	return list
}

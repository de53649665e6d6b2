// Package dra reads the devices that ResourceSlices publish for a node with dynamic resource allocation (DRA), and
// finds the pods that hold these devices.
package dra

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Device is a device published by a DRA driver.
type Device struct {
	Driver string // gpu.nvidia.com
	Pool   string // usually the name of the node
	Name   string // unique in the pool, such as gpu-0
	UUID   string // from the attribute uuid; empty if the driver does not publish it
	// Taints are the device's taints in the ResourceSlice. They do not include taints from DeviceTaintRules.
	Taints []resourcev1.DeviceTaint
	// Pods are the pods for which a ResourceClaim reserves the device.
	Pods []Pod
}

// Pod is a pod that holds a device.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Extended reports whether the pod requests the device as an extended resource, such as nvidia.com/gpu. Kubernetes
	// does not evict such a pod because of a taint (kubernetes/kubernetes#141290).
	Extended bool
	// Tolerations are the tolerations in the pod's request for the device.
	Tolerations []resourcev1.DeviceToleration
}

// String returns NAMESPACE/NAME.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// String returns DRIVER/POOL/DEVICE, and the UUID if it is known, because a driver may number devices by their minor
// numbers, which differ from the indexes in nvidia-smi.
func (d Device) String() string {
	text := d.Driver + "/" + d.Pool + "/" + d.Name
	if d.UUID != "" {
		text += " (" + d.UUID + ")"
	}
	return text
}

// DevicesOn returns the devices that are published for a node, with the pods that hold them.
func DevicesOn(ctx context.Context, client kubernetes.Interface, node string) ([]Device, error) {
	all, err := PublishedOn(ctx, client, node)
	if err != nil {
		return nil, err
	}
	return all, setHolders(ctx, client, all)
}

// PublishedOn returns the devices that are published for a node, without the pods that hold them, sorted by driver,
// pool and name. It reads the newest generation of each pool.
func PublishedOn(ctx context.Context, client kubernetes.Interface, node string) ([]Device, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, node).String(),
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the cluster does not serve ResourceSlices of resource.k8s.io/v1: %w", err)
	case err != nil:
		return nil, fmt.Errorf("list the ResourceSlices for node %q: %w", node, err)
	}
	type pool struct{ driver, name string }
	newest := map[pool]int64{}
	for _, s := range list.Items {
		p := pool{s.Spec.Driver, s.Spec.Pool.Name}
		newest[p] = max(newest[p], s.Spec.Pool.Generation)
	}
	var all []Device
	for _, s := range list.Items {
		if s.Spec.Pool.Generation != newest[pool{s.Spec.Driver, s.Spec.Pool.Name}] {
			continue
		}
		for _, d := range s.Spec.Devices {
			device := Device{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Name: d.Name, Taints: d.Taints}
			if uuid := d.Attributes["uuid"].StringValue; uuid != nil {
				device.UUID = *uuid
			}
			all = append(all, device)
		}
	}
	sorting.Func(all, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool),
			strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// setHolders sets, for each device, the pods that hold it.
func setHolders(ctx context.Context, client kubernetes.Interface, devices []Device) error {
	if len(devices) == 0 {
		return nil
	}
	claims, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ResourceClaims: %w", err)
	}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			i := slices.IndexFunc(devices, func(d Device) bool {
				return d.Driver == result.Driver && d.Pool == result.Pool && d.Name == result.Device
			})
			if i < 0 {
				continue
			}
			for _, holder := range claim.Status.ReservedFor {
				p := Pod{
					Namespace:   claim.Namespace,
					Name:        holder.Name,
					UID:         holder.UID,
					Tolerations: result.Tolerations,
					Extended:    claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true",
				}
				if holder.APIGroup == "" && holder.Resource == "pods" {
					devices[i].Pods = append(devices[i].Pods, p)
				}
			}
		}
	}
	return nil
}

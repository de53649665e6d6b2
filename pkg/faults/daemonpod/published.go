package daemonpod

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/dra"
)

// Published has a line for each device that DRA drivers publish for a node, and a line for each taint on these devices:
// "gpu.nvidia.com/node-b/gpu-0 has taint gpu.nvidia.com/xid=48:NoSchedule".
type Published []string

const hasTaint = " has taint "

// published returns what is currently published. It returns nothing if the cluster does not serve ResourceSlices.
func published(ctx context.Context, client kubernetes.Interface, node string) (all Published, err error) {
	devices, err := dra.PublishedOn(ctx, client, node)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	for _, d := range devices {
		name := d.String()
		all = append(all, name)
		for _, t := range d.Taints {
			all = append(all, name+hasTaint+dra.TaintText(t))
		}
	}
	return all, err
}

// taints returns only the lines about taints. A node with MIG instances has too many devices to record.
func (p Published) taints() Published {
	return slices.DeleteFunc(slices.Clone(p), func(line string) bool { return !strings.Contains(line, hasTaint) })
}

// tainted returns the taints that did not exist before.
func (p Published) tainted(now Published) (all []string) {
	for _, line := range now {
		if strings.Contains(line, hasTaint) && !slices.Contains(p, line) {
			all = append(all, "device "+line)
		}
	}
	return all
}

// missing returns the devices that are no longer published, and the taints that did not exist before.
func (p Published) missing(now Published) []string {
	all := p.tainted(now)
	for _, line := range p {
		if !strings.Contains(line, hasTaint) && !slices.Contains(now, line) {
			all = append(all, "device "+line+" is not published")
		}
	}
	return all
}

// await waits until nothing is missing.
func (p Published) await(ctx context.Context, client kubernetes.Interface, node string) error {
	return poll(ctx, statusTimeout, func(ctx context.Context) (bool, string, error) {
		now, err := published(ctx, client, node)
		if err != nil {
			return false, "", err
		}
		missing := p.missing(now)
		return len(missing) == 0, strings.Join(missing, ", "), nil
	})
}

// Published returns the devices that DRA drivers currently publish for the node. It returns no devices if the copy does
// not belong to a DRA driver.
func (c Copy) Published(ctx context.Context) (Published, error) {
	if !c.DRA {
		return nil, nil
	}
	return published(ctx, c.Client, c.Pod.Spec.NodeName)
}

// Reaction waits until the node has fewer devices than before the change, or published devices have new taints, and
// returns these changes. If nothing changes, the result is empty.
func (c Copy) Reaction(ctx context.Context, before Published, within time.Duration) (changed []string, err error) {
	deadline := time.Now().Add(within)
	err = poll(ctx, within+pollEvery, func(ctx context.Context) (bool, string, error) {
		now, err := allocatable(ctx, c.Client, c.Pod.Spec.NodeName)
		if err != nil {
			return false, "", err
		}
		devices, err := c.Published(ctx)
		if err != nil {
			return false, "", err
		}
		changed = changed[:0]
		for _, fewer := range c.Devices.fewer(now) {
			changed = append(changed, "allocatable "+fewer)
		}
		changed = append(changed, before.tainted(devices)...)
		return len(changed) > 0 || time.Now().After(deadline), "", nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, nil // the API server did not respond, so nothing was observed
	}
	return changed, err
}

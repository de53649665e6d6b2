package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sick is the file from which the test cluster's device plugin reads the GPUs that it reports as unhealthy.
const sick = "/run/simulated-gpus/unhealthy"

// measureDevice measures the time until the node's status has one GPU fewer. The floor is the device plugin itself,
// which needs neither a pod nor a record. In both cases, the kubelet reports the change at the same interval.
func (b *bench) measureDevice(ctx context.Context) ([]row, error) {
	uuid, all, err := b.inventory()
	if err != nil {
		return nil, err
	}
	whole := func(ctx context.Context) error { return b.allocatable(ctx, all) }
	times, err := b.alternate(ctx,
		way{
			"unhealthy",
			func(ctx context.Context, _ int) error {
				_, err := b.ours(ctx, "device", "unhealthy", b.node, "--gpu", uuid, "--ttl", "10m", "--yes",
					"--allow-majority")
				return err
			},
			func(ctx context.Context, i int) error {
				if err := b.revert(ctx, i); err != nil {
					return err
				}
				return whole(ctx)
			},
		},
		way{
			"plugin",
			func(ctx context.Context, _ int) error {
				if _, err := b.script(ctx, "node", "sh", b.node, "sh", "-c", "echo "+uuid+" >"+sick); err != nil {
					return err
				}
				return b.allocatable(ctx, all-1)
			},
			func(ctx context.Context, _ int) error {
				if _, err := b.script(ctx, "node", "sh", b.node, "rm", "-f", sick); err != nil {
					return err
				}
				return whole(ctx)
			},
		})
	if err != nil {
		return nil, err
	}
	r := compared("device unhealthy", "s", times["unhealthy"], "the device plugin's own report", times["plugin"])
	return []row{r.judged()}, nil
}

// inventory returns the UUID of a GPU on the node, and the number of GPUs on the node.
func (b *bench) inventory() (uuid string, gpus int64, err error) {
	text, err := os.ReadFile(filepath.Join(b.state(), "inventory.json"))
	if err != nil {
		return "", 0, err
	}
	var nodes []struct {
		Name string
		GPUs []struct{ UUID string }
	}
	if err := json.Unmarshal(text, &nodes); err != nil {
		return "", 0, err
	}
	for _, n := range nodes {
		if n.Name == b.node && len(n.GPUs) > 0 {
			return n.GPUs[0].UUID, int64(len(n.GPUs)), nil
		}
	}
	return "", 0, fmt.Errorf("node %q is not in the inventory of the cluster", b.node)
}

// allocatable waits until the node's status has the given number of GPUs.
func (b *bench) allocatable(ctx context.Context, want int64) error {
	what := fmt.Sprintf("node %s to have %d allocatable GPUs", b.node, want)
	return until(ctx, what, 50*time.Millisecond, func() (bool, error) {
		node, err := b.client.CoreV1().Nodes().Get(ctx, b.node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		has := node.Status.Allocatable["nvidia.com/gpu"]
		return has.Value() == want, nil
	})
}

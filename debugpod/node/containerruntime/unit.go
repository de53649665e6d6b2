package containerruntime

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// runtimeUnits are the systemd units that containerd runs in, where its cgroup does not tell.
var runtimeUnits = []string{
	"containerd.service", "snap.k8s.containerd.service", "snap.microk8s.daemon-containerd.service",
	"k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service", "k0scontroller.service",
	"k0sworker.service",
}

// unit returns the systemd unit that restarts the process: one whose main process it is, or comes from. Empty when
// there is none.
func (in *Inspection) unit(ctx context.Context, p process.Process) string {
	raw, _ := os.ReadFile(p.Dir + "/cgroup")
	candidates := process.UnitsOf(string(raw))
	if len(candidates) == 0 {
		candidates = runtimeUnits
	}
	family := in.ancestry(p)
	for _, unit := range candidates {
		main, err := in.mainPID(ctx, unit)
		if err != nil {
			in.warnOnce("systemd's units are unknown: %v", err)
			return ""
		}
		if main > 1 && slices.Contains(family, main) {
			return unit
		}
	}
	return ""
}

// ancestry returns the process and those that it comes from.
func (in *Inspection) ancestry(p process.Process) []int {
	parents := map[int]int{}
	for _, other := range in.programs {
		parents[other.PID] = other.Parent
	}
	family := []int{p.PID}
	for parent := p.Parent; parent > 1 && !slices.Contains(family, parent); parent = parents[parent] {
		family = append(family, parent)
	}
	return family
}

// mainPID asks the node's systemd for a unit's main process; 0 when it does not run, or there is no such unit.
func (in *Inspection) mainPID(ctx context.Context, unit string) (int, error) {
	out, err := in.Run(ctx, hostfs.FS(in.host.Root), "systemctl", "systemctl", "show", "-p", "MainPID", "--value", unit)
	if pid, failed := strconv.Atoi(strings.TrimSpace(out)); failed == nil {
		return pid, nil
	}
	if in.isExit(err) { // it knows no such unit
		return 0, nil
	}
	return 0, err
}

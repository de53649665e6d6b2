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

// runtimeUnits are the systemd units to try if the unit cannot be determined from containerd's cgroup.
var runtimeUnits = []string{
	"containerd.service", "snap.k8s.containerd.service", "snap.microk8s.daemon-containerd.service",
	"k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service", "k0scontroller.service",
	"k0sworker.service",
}

// unit returns the systemd unit that restarts the process: the unit whose main process is this process or one of its
// ancestors. It returns "" if there is no such unit.
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
			in.warnOnce("could not determine systemd's units: %v", err)
			return ""
		}
		if main > 1 && slices.Contains(family, main) {
			return unit
		}
	}
	return ""
}

// ancestry returns the PIDs of the process and its ancestors.
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

// mainPID returns the main PID of a systemd unit on the node, or 0 if the unit is not running or does not exist.
func (in *Inspection) mainPID(ctx context.Context, unit string) (int, error) {
	out, err := in.Run(ctx, hostfs.FS(in.host.Root), "systemctl", "systemctl", "show", "-p", "MainPID", "--value", unit)
	if pid, failed := strconv.Atoi(strings.TrimSpace(out)); failed == nil {
		return pid, nil
	}
	if in.isExit(err) { // systemd does not know the unit
		return 0, nil
	}
	return 0, err
}

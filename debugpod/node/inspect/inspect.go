// Package inspect reads information about a node: its GPUs, pods, kernel log, and journald.
package inspect

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// Node handles Inspect. Anything that cannot be read causes a warning.
func Node(ctx context.Context, req api.Inspect, host hostfs.Host) api.Info {
	root, proc := hostfs.FS(host.Root), os.DirFS(host.Proc)
	info := api.Info{
		KernelRelease: hostfs.Trimmed(proc, "sys/kernel/osrelease"),
		BootID:        hostfs.Trimmed(proc, "sys/kernel/random/boot_id"),
		KernelLog: api.KernelLog{
			PrintkDevkmsg: hostfs.Trimmed(proc, "sys/kernel/printk_devkmsg"),
			DmesgRestrict: hostfs.Trimmed(proc, "sys/kernel/dmesg_restrict"),
		},
	}
	warn := func(format string, args ...any) { info.Warnings = append(info.Warnings, fmt.Sprintf(format, args...)) }
	if _, err := fs.Stat(root, "."); err != nil {
		warn("the node's root directory cannot be read, so GPUs and settings are unknown: %v", err)
	}
	// The container has its own host name. The node's host name is that of PID 1.
	name, err := hostname(host.Proc + "/1/ns/uts")
	if err != nil {
		name = hostfs.Trimmed(root, "etc/hostname")
	}
	info.Hostname = name

	info.DriverVersion = driver.Version(hostfs.Trimmed(root, "proc/driver/nvidia/version"))
	info.GPUs = readGPUs(root, warn)
	completeUUIDs(info.GPUs, func() (string, error) { return nvidiaSMI(ctx, host.Root) }, warn)
	info.Journald = readJournald(root, proc)
	info.Pods = readPods(req.PodUIDs, root, proc, info.GPUs, warn)
	if req.Strangers {
		strangers(ctx, req.PodUIDs, req.OwnSessions, root, proc, info.Pods)
	}
	return info
}

package node

import (
	"context"
	"fmt"
	"io/fs"
	"os"
)

// inspect reads what the node is. What cannot be read becomes a warning.
func inspect(ctx context.Context, req Inspect, host Host) Info {
	root, proc := rootFS(host.Root), os.DirFS(host.Proc)
	info := Info{
		KernelRelease: trimmed(proc, "sys/kernel/osrelease"),
		BootID:        trimmed(proc, "sys/kernel/random/boot_id"),
		KernelLog: KernelLog{
			PrintkDevkmsg: trimmed(proc, "sys/kernel/printk_devkmsg"),
			DmesgRestrict: trimmed(proc, "sys/kernel/dmesg_restrict"),
		},
	}
	warn := func(format string, args ...any) { info.Warnings = append(info.Warnings, fmt.Sprintf(format, args...)) }
	if _, err := fs.Stat(root, "."); err != nil {
		warn("the node's root directory cannot be read, so GPUs and settings are unknown: %v", err)
	}
	// The container has a host name of its own: the node's is that of PID 1.
	name, err := hostname(host.Proc + "/1/ns/uts")
	if err != nil {
		name = trimmed(root, "etc/hostname")
	}
	info.Hostname = name

	info.DriverVersion = parseDriverVersion(trimmed(root, "proc/driver/nvidia/version"))
	info.GPUs = readGPUs(root, warn)
	completeUUIDs(info.GPUs, func() (string, error) { return nvidiaSMI(ctx, host.Root) }, warn)
	info.Journald = readJournald(root, proc)
	info.Pods = readPods(req.PodUIDs, root, proc, info.GPUs, warn)
	return info
}

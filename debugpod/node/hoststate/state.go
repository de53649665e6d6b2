// Package hoststate lists what stays on a node after a pod is gone: files that configure or start something, mounts,
// kernel modules and processes. A comparison of two lists, from before and after a user was root on the node, shows
// what the user left there.
package hoststate

import (
	"bufio"
	"io/fs"
	"os"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// Read returns the state of the node. Anything that cannot be read is reported with warn.
func Read(host hostfs.Host, warn func(format string, args ...any)) map[string]string {
	found := map[string]string{}
	proc := os.DirFS(host.Proc)
	readFiles(hostfs.FS(host.Root), found, warn)
	readMounts(proc, found)
	readModules(proc, found)
	readProcesses(proc, found)
	return found
}

// readMounts adds the mount points at the listed paths, because what is mounted there hides the files on disk.
func readMounts(proc fs.FS, found map[string]string) {
	for line := range lines(proc, "1/mountinfo") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := strings.TrimPrefix(fields[4], "/"); listed(at) {
			found[api.StateMount+" /"+at] = fields[3]
		}
	}
}

// readModules adds the loaded kernel modules.
func readModules(proc fs.FS, found map[string]string) {
	for line := range lines(proc, "modules") {
		if name, _, ok := strings.Cut(line, " "); ok {
			found[api.StateModule+" "+name] = ""
		}
	}
}

func lines(proc fs.FS, name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		file, err := proc.Open(name)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		for scanner := bufio.NewScanner(file); scanner.Scan(); {
			if !yield(scanner.Text()) {
				return
			}
		}
	}
}

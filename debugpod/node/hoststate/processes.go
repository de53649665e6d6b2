package hoststate

import (
	"io/fs"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// readProcesses adds the daemons whose control group belongs to no pod, service or session. Such a daemon continues to
// run after the pod that started it is gone. Services need no entry, because their unit files are listed. Processes
// with the same command line are added only once, so that a restart makes no difference.
func readProcesses(proc fs.FS, found map[string]string) {
	for _, pid := range process.PIDs(proc) {
		if pid == "1" || parentOf(hostfs.Trimmed(proc, pid+"/stat")) != "1" ||
			supervised(hostfs.Trimmed(proc, pid+"/cgroup")) {
			continue
		}
		command := strings.Join(strings.FieldsFunc(hostfs.Trimmed(proc, pid+"/cmdline"),
			func(r rune) bool { return r == 0 || r == ' ' }), " ")
		// Skip kernel threads, which have no command line, and container shims, because each container has one.
		if command == "" || strings.Contains(command, "containerd-shim") || strings.Contains(command, "conmon") {
			continue
		}
		if len(command) > mostCommand {
			command = strings.ToValidUTF8(command[:mostCommand], "") + "..."
		}
		found[api.StateProcess+" "+command] = ""
	}
}

// mostCommand is the maximum number of bytes to show of each command line.
const mostCommand = 120

// supervised reports whether the control groups of a process belong to a pod, a service or a login session.
func supervised(cgroup string) bool {
	for _, part := range []string{".service", ".scope", "kubepods", "/docker/", "/libpod"} {
		if strings.Contains(cgroup, part) {
			return true
		}
	}
	return false
}

// parentOf returns the fourth field of /proc/PID/stat. The second, the name, may contain spaces and parentheses.
func parentOf(stat string) string {
	after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(after) < 2 {
		return ""
	}
	return after[1]
}

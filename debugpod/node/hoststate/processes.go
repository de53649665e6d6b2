package hoststate

import (
	"io/fs"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// readProcesses adds the daemons that belong to no pod, service or session: somebody has moved them out of the control
// group in which they were started, or nobody else starts processes in it. A process in a pod ends with the pod, and a
// service has a file that is listed. The same command line counts once, so a restart makes no difference.
func readProcesses(proc fs.FS, found map[string]string) {
	for _, pid := range process.PIDs(proc) {
		if pid == "1" || parentOf(hostfs.Trimmed(proc, pid+"/stat")) != "1" ||
			supervised(hostfs.Trimmed(proc, pid+"/cgroup")) {
			continue
		}
		command := strings.Join(strings.FieldsFunc(hostfs.Trimmed(proc, pid+"/cmdline"),
			func(r rune) bool { return r == 0 || r == ' ' }), " ")
		// A kernel thread has no command line, and each container has a shim.
		if command == "" || strings.Contains(command, "containerd-shim") || strings.Contains(command, "conmon") {
			continue
		}
		if len(command) > mostCommand {
			command = strings.ToValidUTF8(command[:mostCommand], "") + "..."
		}
		found[api.StateProcess+" "+command] = ""
	}
}

// mostCommand is the maximum number of bytes of a command line to list.
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

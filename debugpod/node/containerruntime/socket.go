package containerruntime

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// socketPath returns the socket path of a kubelet's runtime endpoint.
func socketPath(endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "unix:")
	rest = "/" + strings.TrimLeft(rest, "/")
	if !ok || rest == "/" {
		return "",
			fmt.Errorf("the kubelet reaches its container runtime at %s: only unix sockets are supported", endpoint)
	}
	return path.Clean(rest), nil
}

// findSocket returns the socket file below one of the roots, with symbolic links resolved.
func findSocket(socket string, roots ...hostfs.FS) (full string, err error) {
	for _, root := range roots {
		candidate, failed := root.Resolve(hostfs.Relative(socket))
		if failed == nil {
			_, failed = os.Stat(candidate)
		}
		if failed == nil {
			return candidate, nil
		}
		if err == nil {
			err = failed
		}
	}
	return "", err
}

// owner returns the process that listens on the socket. The kernel reports the process that called listen
// (SO_PEERCRED). As a fallback, owner finds the processes that hold a socket bound to this path; this ignores mounts
// and links. It adds a warning if the results differ.
func (in *Inspection) owner(full string, names []string) (process.Process, error) {
	pid, err := in.Peer(full)
	holders := in.holders(names)
	switch {
	case err == nil && pid > 1:
		if len(holders) > 0 && !slices.Contains(holders, pid) {
			in.warn("process %d called listen on %s, but process %d currently has it open", pid, names[0], holders[0])
		}
	case len(holders) > 0: // with socket activation, PID 1 (systemd) opened the socket
		pid = holders[0]
	case err != nil:
		return process.Process{}, err
	}
	for _, p := range in.programs {
		if p.PID == pid {
			return p, nil
		}
	}
	return process.Process{}, fmt.Errorf("process %d, which listens on the socket, is not visible in this PID namespace", pid)
}

// holders returns the processes, except for PID 1, that have a listening socket open at one of these paths.
func (in *Inspection) holders(names []string) []int {
	// PID 1 is in the node's network namespace; this process is not.
	raw, err := os.ReadFile(path.Join(in.host.Proc, "1/net/unix"))
	if err != nil {
		return nil
	}
	inodes := listening(string(raw), names)
	if len(inodes) == 0 {
		return nil
	}
	var pids []int
	for _, p := range in.programs {
		entries, err := os.ReadDir(p.Dir + "/fd")
		if err != nil || p.PID == 1 {
			continue
		}
		if slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			target, err := os.Readlink(p.Dir + "/fd/" + e.Name())
			return err == nil && slices.Contains(inodes, target)
		}) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// listening returns the sockets in /proc/net/unix that listen at one of the paths, in the format of the links in
// /proc/PID/fd: "socket:[38606]". The columns are Num RefCount Protocol Flags Type St Inode Path. The flag
// __SO_ACCEPTCON is 00010000.
func listening(table string, names []string) []string {
	var inodes []string
	for line := range strings.Lines(table) {
		columns := strings.Fields(line)
		if len(columns) < 8 || columns[3] != "00010000" {
			continue
		}
		if name := strings.Join(columns[7:], " "); slices.Contains(names, name) {
			inodes = append(inodes, "socket:["+columns[6]+"]")
		}
	}
	return inodes
}

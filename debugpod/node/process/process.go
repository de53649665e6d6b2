// Package process reads the processes on the node, and finds the node's kubelet.
package process

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// PIDs returns the directories in /proc whose names are numbers.
func PIDs(proc fs.FS) []string {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil
	}
	var pids []string
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 31); err == nil {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// Process is a process as described by /proc.
type Process struct {
	PID, Parent int
	Exe         string   // path as seen by the process
	Args        []string // command line
	Env         map[string]string
	namespace   string // PID namespace
	Mounts      string // mount namespace
	uid         int    // effective UID; -1 if unknown
	Dir         string // directory in /proc
}

// readProgram reads a process. It returns false for processes that have exited, and for kernel threads, which have no
// command line.
func readProgram(proc string, pid int) (Process, bool) {
	p := Process{PID: pid, Dir: path.Join(proc, strconv.Itoa(pid)), uid: -1, Env: map[string]string{}}
	raw, err := os.ReadFile(p.Dir + "/cmdline")
	if err != nil || len(raw) == 0 {
		return Process{}, false
	}
	p.Args = strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
	// The kernel appends this suffix if the file was replaced, for example by an update.
	exe, _ := os.Readlink(p.Dir + "/exe")
	p.Exe = strings.TrimSuffix(exe, " (deleted)")
	p.namespace, _ = os.Readlink(p.Dir + "/ns/pid")
	p.Mounts, _ = os.Readlink(p.Dir + "/ns/mnt")
	var owner deadman.Meta
	if info, err := os.Stat(p.Dir); err == nil && hostfs.Ownership(info, &owner) == nil {
		p.uid = owner.UID
	}
	environ, _ := os.ReadFile(p.Dir + "/environ")
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if key, value, ok := strings.Cut(entry, "="); ok {
			p.Env[key] = value
		}
	}
	stat, _ := os.ReadFile(p.Dir + "/stat")
	if i := strings.LastIndexByte(string(stat), ')'); i >= 0 {
		if after := strings.Fields(string(stat)[i+1:]); len(after) > 1 { // the first field is the state
			p.Parent, _ = strconv.Atoi(after[1])
		}
	}
	return p, true
}

// IsRoots reports whether the process runs as the user of the helper, which is root. Any user can start a process with
// another program's name.
func (p Process) IsRoots() bool { return p.uid >= 0 && p.uid == os.Geteuid() }

// All returns all processes by PID.
func All(proc string) []Process {
	var all []Process
	for _, name := range PIDs(os.DirFS(proc)) {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, found := readProgram(proc, pid); found {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all
}

// Is reports whether the process runs the program with the given name. It compares both the executable and the name
// with which it was called, because one file can contain several programs.
func (p Process) Is(name string) bool {
	return path.Base(p.Exe) == name || p.Called() == name
}

// Called returns the name with which the program was called. A process may change its name to an entire command line,
// such as "k3s server".
func (p Process) Called() string {
	if len(p.Args) == 0 {
		return ""
	}
	first, _, _ := strings.Cut(p.Args[0], " ")
	return path.Base(first)
}

// Flag returns the last value of a flag on the command line, under any of the flag's names (--config, -c).
func (p Process) Flag(names ...string) (value string, found bool) {
	return Flag(p.Args[min(1, len(p.Args)):], names...)
}

// Flag returns the value of --name=value or --name value, with one or two dashes.
func Flag(args []string, names ...string) (value string, found bool) {
	for i, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			continue
		}
		name, inline, hasInline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !slices.Contains(names, name):
		case hasInline:
			value, found = inline, true
		case i+1 < len(args):
			value, found = args[i+1], true
		}
	}
	return value, found
}

// Root returns the file system as seen by the process, with its own mounts, or the node's file system if that of the
// process cannot be read.
func (p Process) Root(host hostfs.Host) hostfs.FS {
	own := p.Dir + "/root"
	if _, err := os.Stat(own + "/."); err != nil {
		return hostfs.FS(host.Root)
	}
	return hostfs.FS(own)
}

// Abs returns the absolute form of a path on the process's command line, using its working directory.
func (p Process) Abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	dir, err := os.Readlink(p.Dir + "/cwd")
	if err != nil {
		dir = "/"
	}
	return path.Join(dir, name)
}

// expand replaces the process's environment variables in a string. Snaps use such variables in args files.
func (p Process) expand(text string) string {
	return os.Expand(text, func(name string) string { return p.Env[name] })
}

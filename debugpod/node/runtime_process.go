package node

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// program is a process as /proc shows it.
type program struct {
	pid, parent int
	exe         string   // as the process itself sees it
	args        []string // the command line
	env         map[string]string
	namespace   string // its PID namespace
	mounts      string // its mount namespace
	uid         int    // the effective one; -1 if it is unknown
	proc        string // its directory of /proc
}

// readProgram reads a process. One that has ended meanwhile, and the kernel's own, which have no command line, are not
// found.
func readProgram(proc string, pid int) (program, bool) {
	p := program{pid: pid, proc: path.Join(proc, strconv.Itoa(pid)), uid: -1, env: map[string]string{}}
	raw, err := os.ReadFile(p.proc + "/cmdline")
	if err != nil || len(raw) == 0 {
		return program{}, false
	}
	p.args = strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
	// Of a file that was replaced by an update, the kernel says so behind the name.
	exe, _ := os.Readlink(p.proc + "/exe")
	p.exe = strings.TrimSuffix(exe, " (deleted)")
	p.namespace, _ = os.Readlink(p.proc + "/ns/pid")
	p.mounts, _ = os.Readlink(p.proc + "/ns/mnt")
	var owner deadman.Meta
	if info, err := os.Stat(p.proc); err == nil && ownership(info, &owner) == nil {
		p.uid = owner.UID
	}
	environ, _ := os.ReadFile(p.proc + "/environ")
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if key, value, ok := strings.Cut(entry, "="); ok {
			p.env[key] = value
		}
	}
	stat, _ := os.ReadFile(p.proc + "/stat")
	if i := strings.LastIndexByte(string(stat), ')'); i >= 0 {
		if after := strings.Fields(string(stat)[i+1:]); len(after) > 1 { // the state comes first
			p.parent, _ = strconv.Atoi(after[1])
		}
	}
	return p, true
}

// isRoots reports whether the process runs as root: as this process's user. Every user may start a process that goes by
// the name of another program.
func (p program) isRoots() bool { return p.uid >= 0 && p.uid == os.Geteuid() }

// programs returns all processes by PID, except for children that still run their parent's program: between fork and
// exec, each child of a kubelet looks like a second kubelet, and on a busy node that takes long enough to be seen.
func programs(proc string) []program {
	var all []program
	for _, name := range processes(os.DirFS(proc)) {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, found := readProgram(proc, pid); found {
			all = append(all, p)
		}
	}
	byPID := map[int]program{}
	for _, p := range all {
		byPID[p.pid] = p
	}
	all = slices.DeleteFunc(all, func(p program) bool {
		parent, ok := byPID[p.parent]
		return ok && p.exe == parent.exe && slices.Equal(p.args, parent.args)
	})
	slices.SortFunc(all, func(a, b program) int { return a.pid - b.pid })
	return all
}

// is reports whether the process runs the program of that name. Several may be one file, which goes by the name it was
// called with.
func (p program) is(name string) bool {
	return path.Base(p.exe) == name || p.called() == name
}

// called returns the name by which the program was called. A process may write its whole command line there: "k3s
// server".
func (p program) called() string {
	if len(p.args) == 0 {
		return ""
	}
	first, _, _ := strings.Cut(p.args[0], " ")
	return path.Base(first)
}

// flag returns the value of a flag on the command line, under one of its names (--config, -c); the last one counts.
func (p program) flag(names ...string) (value string, found bool) {
	return flagOf(p.args[min(1, len(p.args)):], names...)
}

// flagOf finds --name=value, --name value, and the same with one dash.
func flagOf(args []string, names ...string) (value string, found bool) {
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

// root returns the file system as the process sees it, with its own mounts; the node's where that cannot be read.
func (p program) root(host Host) rootFS {
	own := p.proc + "/root"
	if _, err := os.Stat(own + "/."); err != nil {
		return rootFS(host.Root)
	}
	return rootFS(own)
}

// abs returns a path of the process's command line, from its working directory where it is relative.
func (p program) abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	dir, err := os.Readlink(p.proc + "/cwd")
	if err != nil {
		dir = "/"
	}
	return path.Join(dir, name)
}

// expand replaces variables of the process's environment, as the args files of snaps have them.
func (p program) expand(text string) string {
	return os.Expand(text, func(name string) string { return p.env[name] })
}

// relative returns a path as fs.FS wants it.
func relative(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}

func (r rootFS) readFile(name string) ([]byte, error) { return fs.ReadFile(r, relative(name)) }

// stat follows links.
func (r rootFS) stat(name string) (fs.FileInfo, error) {
	full, err := r.resolve(relative(name))
	if err != nil {
		return nil, err
	}
	return os.Stat(full)
}

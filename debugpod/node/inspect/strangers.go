package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

const (
	// looks is the number of times that processes are listed, and between is the time between two listings. Probe
	// commands exit sooner than that.
	looks   = 3
	between = 700 * time.Millisecond
	// mostFiles is the maximum number of changed files in a container to inspect, in addition to its programs.
	mostFiles = 20000
	// mostShown is the maximum number of strangers per pod.
	mostShown = 8
	// mostCompared is the maximum size in bytes of a program to compare with the one in the image.
	mostCompared = 256 << 20
)

// containerID matches the container ID in a cgroup path, below the pod's cgroup. The container may have its own cgroups
// below it.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// foreign matches the names of programs that run containers in a sandbox whose processes are not visible from the node.
var foreign = regexp.MustCompile(`^(runsc|qemu-|cloud-hyperviso|firecracker|virtiofsd|kata)`)

// member is a process in a container.
type member struct {
	pid     string
	name    string
	started uint64 // in clock ticks since boot
	session string // process ID of the session's leader
}

// strangers adds to each pod what was not started by the programs of the pod's containers. A process started by kubectl
// exec has its own session, and so does a daemon that the process leaves behind. With ownSessions, the containers'
// programs also have such processes, so these are ignored. A program must come from the container's image if the image
// contains it, or if it would be found before one of the image's programs.
func strangers(
	ctx context.Context, uids []string, ownSessions bool, root hostfs.FS, proc fs.FS, pods map[string]api.PodUse,
) {
	found := members(proc, uids)
	lodging := map[string]map[string][]string{}
	if !ownSessions {
		lodging = lodgers(found)
	}
	for look := 1; look < looks && len(lodging) > 0; look++ {
		select {
		case <-ctx.Done():
		case <-time.After(between):
		}
		again := lodgers(members(proc, uids))
		for uid := range lodging { // each may have exited and left another one behind
			maps.DeleteFunc(lodging[uid], func(container string, _ []string) bool {
				return len(again[uid][container]) == 0
			})
		}
		maps.DeleteFunc(lodging, func(_ string, all map[string][]string) bool { return len(all) == 0 })
	}
	for _, uid := range uids {
		use := pods[uid]
		for _, names := range lodging[uid] {
			for _, name := range names {
				use.Strangers = append(use.Strangers,
					fmt.Sprintf("process %q was not started by the container's program", name))
			}
		}
		if len(found[uid]) == 0 {
			use.Unseen = "no process of the pod's containers was found"
		}
		for _, all := range found[uid] {
			if foreign.MatchString(eldest(all).name) {
				use.Strangers, use.Unseen = nil, "the pod's processes run in a sandbox"
				break
			}
			files, err := replaced(root, hostfs.Trimmed(proc, eldest(all).pid+"/mountinfo"))
			for _, file := range files {
				use.Strangers = append(use.Strangers, fmt.Sprintf("the program %q was replaced", file))
			}
			if err != nil {
				use.Unseen = err.Error()
			}
		}
		slices.Sort(use.Strangers)
		use.Strangers = slices.Compact(use.Strangers)
		use.Strangers = use.Strangers[:min(len(use.Strangers), mostShown)]
		pods[uid] = use
	}
}

// members returns the processes of pods, by UID and container.
func members(proc fs.FS, uids []string) map[string]map[string][]member {
	found := map[string]map[string][]member{}
	host, _ := fs.ReadLink(proc, "1/ns/mnt")
	for _, pid := range process.PIDs(proc) {
		cgroup := hostfs.Trimmed(proc, pid+"/cgroup")
		uid := podOf(cgroup, uids)
		if uid == "" || strings.Contains(cgroup, "crio-conmon-") { // CRI-O's container monitor
			continue
		}
		if space, err := fs.ReadLink(proc, pid+"/ns/mnt"); err == nil && space == host {
			continue // a container has its own
		}
		_, below, plain := strings.Cut(cgroup, uid)
		if !plain {
			_, below, _ = strings.Cut(cgroup, strings.ReplaceAll(uid, "-", "_"))
		}
		container := containerID.FindString(below)
		stat := hostfs.Trimmed(proc, pid+"/stat")
		name, started, err := parseStat(stat)
		if container == "" || err != nil {
			continue
		}
		if found[uid] == nil {
			found[uid] = map[string][]member{}
		}
		session := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])[3]
		found[uid][container] = append(found[uid][container], member{pid, name, started, session})
	}
	return found
}

// eldest returns a container's program, which is the process from which all others descend.
func eldest(all []member) member {
	return slices.MinFunc(all, func(a, b member) int {
		x, _ := strconv.Atoi(a.pid)
		y, _ := strconv.Atoi(b.pid)
		return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(x, y))
	})
}

// lodgers returns the names of processes that do not belong to the session of their container's program, by pod UID and
// container.
func lodgers(pods map[string]map[string][]member) map[string]map[string][]string {
	found := map[string]map[string][]string{}
	for uid, containers := range pods {
		for container, all := range containers {
			program := eldest(all)
			for _, each := range all {
				if each.session == program.session {
					continue
				}
				if found[uid] == nil {
					found[uid] = map[string][]string{}
				}
				found[uid][container] = append(found[uid][container], each.name)
			}
		}
	}
	return found
}

// searched are the directories in which shells search for programs, and those in which the loader searches for the
// libraries that it loads first.
var searched = []string{"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "etc"}

// preload is the file that lists libraries to load into every program.
const preload = "etc/ld.so.preload"

var (
	errNoOverlay = errors.New("the root file system of a container is not an overlay")
	errTooMany   = errors.New("a container has changed too many files")
)

// replaced returns the programs in a container that are not from its image, based on the mounts of the container's
// program. An error means that there may be more.
func replaced(root hostfs.FS, mountinfo string) ([]string, error) {
	mounted := layers(mountinfo)
	if mounted.upper == "" {
		return nil, errNoOverlay
	}
	var found []string
	var failed error
	top := hostfs.Relative(mounted.upper)
	walk := func(below string, skip []string) {
		count := 0
		err := fs.WalkDir(root, path.Join(top, below), func(name string, entry fs.DirEntry, err error) error {
			file := strings.TrimPrefix(strings.TrimPrefix(name, top), "/")
			switch count++; {
			case count > mostFiles:
				failed = errTooMany
				return fs.SkipAll
			case errors.Is(err, fs.ErrNotExist): // files appear and disappear while the container is running
			case err != nil:
				failed = err
			case entry.IsDir() && slices.Contains(skip, file):
				return fs.SkipDir
			case !entry.IsDir() && mounted.differs(root, file, slices.Contains(searched, path.Dir(file))):
				found = append(found, "/"+file)
			}
			return nil
		})
		if err != nil {
			failed = err
		}
	}
	for _, dir := range searched {
		walk(dir, nil)
	}
	walk("", searched)
	return found, failed
}

// mount is the root file system of a container: the writable layer, the image's layers, and what is mounted over them.
type mount struct {
	upper  string
	lower  []string
	points map[string]bool
}

// differs reports whether a file in the writable layer replaces one of the image's programs. In a searched directory, a
// new program also counts.
func (m mount) differs(root hostfs.FS, file string, searched bool) bool {
	name := path.Join(hostfs.Relative(m.upper), file)
	info, err := root.LinkInfo(name)
	if err != nil || m.points["/"+file] {
		return false
	}
	program := info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 && info.Size() > 0
	link := info.Mode()&fs.ModeSymlink != 0
	if file == preload || searched && (program || link) && path.Dir(file) != "etc" {
		return !m.asInImage(root, name, file, info)
	}
	for _, layer := range m.lower {
		below, err := root.LinkInfo(path.Join(hostfs.Relative(layer), file))
		if err == nil && below.Mode().IsRegular() && below.Mode().Perm()&0o111 != 0 {
			return !m.asInImage(root, name, file, info)
		}
	}
	return false
}

// asInImage reports whether a file has the same content as in the image. This matters because changing a file's owner
// also copies the file to the writable layer.
func (m mount) asInImage(root hostfs.FS, name, file string, info fs.FileInfo) bool {
	for _, layer := range m.lower { // the first layer is the topmost one
		at := path.Join(hostfs.Relative(layer), file)
		below, err := root.LinkInfo(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return err == nil && info.Mode().IsRegular() && below.Mode().IsRegular() && below.Size() == info.Size() &&
			info.Size() <= mostCompared && sameContent(root, name, at)
	}
	return false
}

// sameContent reports whether two regular files have the same content.
func sameContent(root hostfs.FS, a, b string) bool {
	one, err := root.Open(a)
	if err != nil {
		return false
	}
	defer func() { _ = one.Close() }()
	other, err := root.Open(b)
	if err != nil {
		return false
	}
	defer func() { _ = other.Close() }()
	left, right := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errLeft := io.ReadFull(one, left)
		k, errRight := io.ReadFull(other, right)
		if !bytes.Equal(left[:n], right[:k]) {
			return false
		}
		if errLeft != nil || errRight != nil {
			return errLeft != nil && errRight != nil
		}
	}
}

// layers reads the mounts of a container. upper is empty if the root file system is not an overlay.
func layers(mountinfo string) mount {
	found := mount{points: map[string]bool{}}
	for line := range strings.Lines(mountinfo) {
		before, after, is := strings.Cut(strings.TrimSpace(line), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !is || len(fields) < 5 {
			continue
		}
		found.points[fields[4]] = true
		if fields[4] != "/" || len(source) < 3 || source[0] != "overlay" {
			continue
		}
		found.upper, found.lower = "", nil
		for option := range strings.SplitSeq(source[2], ",") {
			name, value, _ := strings.Cut(option, "=")
			switch {
			case name == "upperdir" && path.IsAbs(value):
				found.upper = value
			case name == "lowerdir":
				found.lower = strings.Split(value, ":")
			case name == "lowerdir+":
				found.lower = append(found.lower, value)
			}
		}
	}
	for i, layer := range found.lower {
		if !path.IsAbs(layer) { // runtimes shorten long lists with relative paths
			found.lower[i] = path.Join(path.Dir(path.Dir(found.upper)), layer)
		}
	}
	return found
}

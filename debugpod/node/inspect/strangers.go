package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

const (
	// linger is how long a process must exist to count as a stranger: commands of probes end sooner.
	linger = 1500 * time.Millisecond
	// mostFiles is the maximum number of changed files that are looked at in a container.
	mostFiles = 20000
	// mostShown is the maximum number of strangers per pod.
	mostShown = 8
)

// containerID matches the ID of a container in a cgroup. Below it there may be cgroups of the container's own.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// member is a process of a container.
type member struct {
	pid     string
	name    string
	started uint64 // in clock ticks since boot
	session string // process ID of the session's leader
}

// strangers returns, by the UID of the pod, what did not start with the programs of its containers. A process that was
// started by kubectl exec has a session of its own, and so has a daemon that it leaves behind. Programs that the
// container's image has, or that are found before these, must be the image's.
func strangers(ctx context.Context, uids []string, root hostfs.FS, proc fs.FS) map[string][]string {
	first := lodgers(proc, uids)
	if slices.ContainsFunc(slices.Collect(maps.Values(first)),
		func(all map[string]string) bool { return len(all) > 0 }) {
		select {
		case <-ctx.Done():
		case <-time.After(linger):
		}
	}
	again := lodgers(proc, uids)
	found := map[string][]string{}
	for uid, seen := range first {
		for key, what := range seen {
			if again[uid][key] == what {
				found[uid] = append(found[uid], what)
			}
		}
	}
	for uid, containers := range members(proc, uids) {
		for _, all := range containers {
			for _, file := range replaced(root, hostfs.Trimmed(proc, eldest(all).pid+"/mountinfo")) {
				found[uid] = append(found[uid], "the program "+file+" was replaced")
			}
		}
	}
	for uid, all := range found {
		slices.Sort(all)
		all = slices.Compact(all)
		found[uid] = all[:min(len(all), mostShown)]
	}
	return found
}

// members returns the processes of pods, by UID and container.
func members(proc fs.FS, uids []string) map[string]map[string][]member {
	found := map[string]map[string][]member{}
	for _, pid := range process.PIDs(proc) {
		cgroup := hostfs.Trimmed(proc, pid+"/cgroup")
		uid, container := podOf(cgroup, uids), containerID.FindString(cgroup)
		stat := hostfs.Trimmed(proc, pid+"/stat")
		name, started, err := parseStat(stat)
		if uid == "" || container == "" || err != nil {
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

// eldest returns a container's program: the process that all others come from.
func eldest(all []member) member {
	return slices.MinFunc(all, func(a, b member) int {
		x, _ := strconv.Atoi(a.pid)
		y, _ := strconv.Atoi(b.pid)
		return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(x, y))
	})
}

// lodgers returns the processes in pods that do not belong to the session of their container's program, by the UID of
// the pod and the process.
func lodgers(proc fs.FS, uids []string) map[string]map[string]string {
	found := map[string]map[string]string{}
	for uid, containers := range members(proc, uids) {
		found[uid] = map[string]string{}
		for _, all := range containers {
			program := eldest(all)
			for _, each := range all {
				if each.session != program.session {
					found[uid][fmt.Sprint(each.pid, " ", each.started)] = fmt.Sprintf(
						"process %q was not started by the container's program", each.name)
				}
			}
		}
	}
	return found
}

// searched are the directories in which shells look for programs, and the file that the loader obeys.
var searched = []string{
	"bin/", "sbin/", "usr/bin/", "usr/sbin/", "usr/local/bin/", "usr/local/sbin/", "etc/ld.so.preload",
}

// replaced returns the programs of a container that are not its image's, from the mounts of its program. With other
// file systems than overlay, nothing is known.
func replaced(root hostfs.FS, mountinfo string) []string {
	upper, lower := layers(mountinfo)
	if upper == "" {
		return nil
	}
	var found []string
	count := 0
	top := hostfs.Relative(upper)
	_ = fs.WalkDir(root, top, func(name string, entry fs.DirEntry, err error) error {
		if count++; count > mostFiles {
			return fs.SkipAll
		}
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go while the container runs
		}
		file := strings.TrimPrefix(name, top+"/")
		info, err := entry.Info()
		if err != nil || info.Mode().Perm()&0o111 == 0 && file != "etc/ld.so.preload" {
			return nil //nolint:nilerr // as above
		}
		if info.Size() == 0 { // where the container runtime mounts a file
			return nil
		}
		if slices.ContainsFunc(searched, func(dir string) bool { return strings.HasPrefix(file, dir) }) ||
			slices.ContainsFunc(lower, func(layer string) bool {
				below, err := fs.Stat(root, path.Join(hostfs.Relative(layer), file))
				return err == nil && below.Mode().IsRegular()
			}) {
			found = append(found, "/"+file)
		}
		return nil
	})
	return found
}

// layers returns the writable layer of a container's root file system, and those of its image.
func layers(mountinfo string) (upper string, lower []string) {
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		mount, source := strings.Fields(before), strings.Fields(after)
		if !found || len(mount) < 5 || mount[4] != "/" || len(source) < 3 || source[0] != "overlay" {
			continue
		}
		upper, lower = "", nil
		for option := range strings.SplitSeq(source[2], ",") {
			if value, is := strings.CutPrefix(option, "upperdir="); is && path.IsAbs(value) {
				upper = value
			}
			if value, is := strings.CutPrefix(option, "lowerdir="); is {
				lower = strings.Split(value, ":")
			}
		}
	}
	for i, layer := range lower {
		if !path.IsAbs(layer) { // runtimes shorten long lists: .../snapshots/20/fs, below which it is 19/fs
			lower[i] = path.Join(path.Dir(path.Dir(upper)), layer)
		}
	}
	return upper, lower
}

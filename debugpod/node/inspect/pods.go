package inspect

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/checkpoint"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// readPods returns the GPUs and the process of each pod.
func readPods(uids []string, root, proc fs.FS, gpus []api.GPU, warn func(string, ...any)) map[string]api.PodUse {
	if len(uids) == 0 {
		return nil
	}
	file := path.Join(checkpoint.Dir, checkpoint.Name)
	raw, err := fs.ReadFile(root, hostfs.Relative(file))
	devices := map[string][]string{}
	switch {
	case errors.Is(err, fs.ErrNotExist): // no device plugin has allocated a device yet
	case err != nil:
		warn("determine which pods hold GPUs: %v", err)
	default:
		if devices, err = devicesOf(raw); err != nil {
			warn("determine from %s which pods hold GPUs: %v", file, err)
		}
	}
	running := podProcesses(proc, uids)
	pods := make(map[string]api.PodUse, len(uids))
	for _, uid := range uids {
		use := api.PodUse{GPUs: uuids(devices[uid], gpus)}
		if p, found := pick(slices.DeleteFunc(running[uid], podProcess.isPause)); found {
			use.PID, use.Process = p.pid, p.name
		}
		pods[uid] = use
	}
	return pods
}

// ProcessesOf returns, by pod UID, the PID of one process in each pod that has a process. The process is the sandbox's
// pause process only if no container is running.
func ProcessesOf(uids []string, host hostfs.Host) map[string]int {
	pids := map[string]int{}
	for uid, all := range podProcesses(os.DirFS(host.Proc), uids) {
		p, found := pick(slices.DeleteFunc(slices.Clone(all), podProcess.isPause))
		if !found {
			p, _ = pick(all)
		}
		pids[uid] = p.pid
	}
	return pids
}

// devicesOf returns the IDs of NVIDIA devices in the kubelet's checkpoint, by the UID of the pod that holds them. Time
// slicing appends "::N" to the ID of a device; this suffix is removed.
func devicesOf(raw []byte) (map[string][]string, error) {
	c, err := checkpoint.Parse(raw)
	if err != nil {
		return nil, err
	}
	devices := map[string][]string{}
	for _, e := range c.Entries {
		if !strings.HasPrefix(e.Resource, "nvidia.com/") {
			continue
		}
		devices[e.PodUID] = append(devices[e.PodUID], e.Devices...)
	}
	for uid, ids := range devices {
		for i, id := range ids {
			ids[i], _, _ = strings.Cut(id, "::")
		}
		slices.Sort(ids)
		devices[uid] = slices.Compact(ids)
	}
	return devices, nil
}

// uuids converts the device IDs used by device plugins to UUIDs. NVIDIA's plugin uses UUIDs, or indexes if
// DEVICE_ID_STRATEGY=index. GKE's plugin uses nvidiaMINOR, with the suffix /vgpuN if the GPU is shared. Other IDs are
// not converted.
func uuids(ids []string, gpus []api.GPU) []string {
	var out []string
	for _, id := range ids {
		is := func(api.GPU) bool { return false }
		device, _, _ := strings.Cut(id, "/")
		if index, err := strconv.Atoi(id); err == nil {
			is = func(g api.GPU) bool { return g.Index == index }
		} else if minor, err := strconv.Atoi(strings.TrimPrefix(device, "nvidia")); err == nil {
			is = func(g api.GPU) bool { return g.Minor == minor }
		}
		if i := slices.IndexFunc(gpus, is); i >= 0 && gpus[i].UUID != "" {
			id = gpus[i].UUID
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// podProcess is a process in a pod.
type podProcess struct {
	pid     int
	name    string
	started uint64 // in clock ticks since boot
	usesGPU bool   // whether it has a /dev/nvidiaN open
}

// isPause reports whether the process is a sandbox's pause process.
func (p podProcess) isPause() bool { return p.name == "pause" }

// podProcesses returns the processes of the pods, determined by their cgroups.
func podProcesses(proc fs.FS, uids []string) map[string][]podProcess {
	found := map[string][]podProcess{}
	for _, pid := range process.PIDs(proc) {
		uid := podOf(hostfs.Trimmed(proc, pid+"/cgroup"), uids)
		if uid == "" {
			continue
		}
		name, started, err := parseStat(hostfs.Trimmed(proc, pid+"/stat"))
		if err != nil {
			continue
		}
		n, _ := strconv.Atoi(pid)
		found[uid] = append(found[uid], podProcess{n, name, started, opensGPU(proc, pid)})
	}
	return found
}

// pick returns the process that the driver would name in an XID.
func pick(all []podProcess) (podProcess, bool) {
	if len(all) == 0 {
		return podProcess{}, false
	}
	return slices.MinFunc(all, func(a, b podProcess) int {
		switch {
		case a.usesGPU != b.usesGPU && a.usesGPU, a.usesGPU == b.usesGPU && a.started < b.started:
			return -1
		case a.usesGPU == b.usesGPU && a.started == b.started:
			return a.pid - b.pid
		default:
			return 1
		}
	}), true
}

// podOf returns the pod in a /proc/PID/cgroup file. The path contains .../podUID/... with cgroupfs, and
// ...-podUID_with_underscores.slice/... with systemd. cgroup v1 has one line per hierarchy, and v2 has a single line.
func podOf(cgroup string, uids []string) string {
	for _, uid := range uids {
		if uid != "" &&
			(strings.Contains(cgroup, "pod"+uid) || strings.Contains(cgroup, "pod"+strings.ReplaceAll(uid, "-", "_"))) {
			return uid
		}
	}
	return ""
}

// parseStat parses the name and start time in /proc/PID/stat. The name may contain any character, so it ends at the
// last parenthesis.
func parseStat(stat string) (name string, started uint64, err error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", 0, errors.New("the stat file of a process contains no name")
	}
	fields := strings.Fields(stat[end+1:])
	const starttime = 22 - 3 // proc(5) counts fields from 1, and the name is field 2
	if len(fields) <= starttime {
		return "", 0, errors.New("the stat file of a process contains no start time")
	}
	started, err = strconv.ParseUint(fields[starttime], 10, 64)
	return stat[open+1 : end], started, err
}

func opensGPU(proc fs.FS, pid string) bool {
	entries, err := fs.ReadDir(proc, pid+"/fd")
	if err != nil {
		return false
	}
	device := regexp.MustCompile(`^/dev/nvidia[0-9]+$`)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		target, err := fs.ReadLink(proc, pid+"/fd/"+e.Name())
		return err == nil && device.MatchString(target)
	})
}

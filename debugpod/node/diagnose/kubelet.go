package diagnose

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

const (
	maxSockets = 256
	maxPIDs    = 64
	// defaultKubeletDir is the default of --root-dir.
	defaultKubeletDir = "/var/lib/kubelet"
)

// gpuPrograms are the names of programs on which GPUs depend.
var gpuPrograms = []string{
	"nvidia-persistenced", "nv-fabricmanager", "nvidia-imex", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
	"nv-hostengine", "nvlsm",
}

// gpuProcesses returns the PIDs of running gpuPrograms by name.
func gpuProcesses(all []process.Process) map[string][]int {
	found := map[string][]int{}
	for _, p := range all {
		for _, name := range gpuPrograms {
			if p.Is(name) && len(found[name]) < maxPIDs {
				found[name] = append(found[name], p.PID)
			}
		}
	}
	return found
}

// units returns the systemd units of the relevant processes, determined from their cgroups, and the start times of the
// processes.
func (d *diagnosing) units(all []process.Process, kubelet process.Kubelet, runtime api.Runtime) []api.Unit {
	var units []api.Unit
	for _, p := range all {
		isRuntime := runtime.Instance != nil && p.PID == runtime.Instance.PID
		matters := p.PID == kubelet.PID || isRuntime || slices.ContainsFunc(gpuPrograms, p.Is)
		if !matters || len(units) == maxPIDs {
			continue
		}
		raw, _ := os.ReadFile(p.Dir + "/cgroup")
		inside := process.UnitsOf(string(raw))
		name := ""
		switch {
		case isRuntime && runtime.Instance.Unit != "":
			name = runtime.Instance.Unit
		case len(inside) > 0 && !strings.Contains(string(raw), "kubepods"):
			// For a process in a pod, the unit would be the runtime's unit.
			name = inside[0]
		default:
			continue
		}
		stat, _ := os.ReadFile(p.Dir + "/stat")
		units = append(units, api.Unit{Name: name, PID: p.PID, Started: d.clock.startOf(string(stat))})
	}
	return units
}

// kubeletFlags are command-line flags that override settings in the configuration file.
var kubeletFlags = []struct{ key, flag string }{
	{"cgroupDriver", "cgroup-driver"},
	{"cpuManagerPolicy", "cpu-manager-policy"},
	{"topologyManagerPolicy", "topology-manager-policy"},
	{"topologyManagerScope", "topology-manager-scope"},
	{"memoryManagerPolicy", "memory-manager-policy"},
}

// kubeletConfig reads the kubelet's configuration files and flags. Settings with default values are omitted.
func (d *diagnosing) kubeletConfig(kubelet process.Kubelet, problem string) (func(*api.Diagnosis), error) {
	if kubelet.PID == 0 {
		return nil, errors.New(problem)
	}
	root := kubelet.Root(d.host)
	files := kubelet.KubeletConfigs(root)
	if kubelet.IsEmbedded() { // k3s configures its kubelet with these files
		for _, name := range []string{"k3s", "rke2"} {
			files = append(files, glob(root, "/var/lib/rancher/"+name+"/agent/etc/kubelet.conf.d", "*.conf", 64)...)
		}
	}
	config, wrong := map[string]string{}, problems{}
	for _, file := range files {
		text, err := root.Text(file, hostfs.MaxFile)
		if err != nil {
			wrong.add("%w", err)
			continue
		}
		for _, setting := range kubeletFlags {
			if value := process.TopLevel([]byte(text), setting.key); value != "" {
				config[setting.key] = api.Shorten(value, 64)
			}
		}
	}
	args := kubelet.AllArgs(root)
	for _, setting := range kubeletFlags {
		if value, ok := process.Flag(args, setting.flag); ok {
			config[setting.key] = api.Shorten(value, 64)
		}
	}
	return func(found *api.Diagnosis) { found.Probe.KubeletConfig = config }, wrong.err()
}

// kubeletDir returns the kubelet's --root-dir.
func (d *diagnosing) kubeletDir(kubelet process.Kubelet) string {
	if kubelet.PID == 0 {
		return defaultKubeletDir
	}
	dir, _ := process.Flag(kubelet.AllArgs(kubelet.Root(d.host)), "root-dir")
	return kubelet.Abs(cmp.Or(dir, defaultKubeletDir))
}

// devicePlugins returns the sockets of the kubelet's device manager, device plugins, and DRA drivers. base is the
// kubelet's --root-dir.
func (d *diagnosing) devicePlugins(base string) (func(*api.Diagnosis), error) {
	var wrong problems
	var sockets []api.Socket
	if _, err := d.root.Info(base); err != nil {
		wrong.add("%w", err)
	}
	for _, dir := range []string{base + "/device-plugins", base + "/plugins_registry"} {
		entries, err := readEntries(d.root, dir, maxListed)
		if err != nil {
			wrong.add("%w", err)
		}
		for _, e := range entries {
			if e.Type()&fs.ModeSocket == 0 {
				continue
			}
			if len(sockets) == maxSockets {
				wrong.add("more than %d found", maxSockets)
				break
			}
			name := path.Join(dir, e.Name())
			socket := api.Socket{Path: name}
			full, err := d.root.Resolve(hostfs.Relative(name))
			if err == nil {
				socket.Listening = listens(full)
				if info, err := os.Stat(full); err == nil {
					socket.Modified = info.ModTime().UTC()
				}
			}
			sockets = append(sockets, socket)
		}
	}
	return func(found *api.Diagnosis) { found.Probe.DevicePlugins = sockets }, wrong.err()
}

// runtimeDir returns the data directory of the container runtime, or "" if it is unknown.
func runtimeDir(runtime api.Runtime) string {
	i := runtime.Instance
	if i == nil {
		return ""
	}
	if i.CRI != nil {
		var config struct {
			ContainerdRootDir string `json:"containerdRootDir"`
		}
		if json.Unmarshal(i.CRI.Config, &config) == nil && path.IsAbs(config.ContainerdRootDir) {
			return path.Clean(config.ContainerdRootDir)
		}
		if i.CRI.Name == "cri-o" {
			return "/var/lib/containers/storage"
		}
	}
	if len(i.Args) > 0 {
		if dir, ok := process.Flag(i.Args[1:], "root"); ok && path.IsAbs(dir) {
			return path.Clean(dir)
		}
	}
	return "/var/lib/containerd"
}

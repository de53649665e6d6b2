package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

const (
	maxSockets = 256
	maxPIDs    = 64
	// defaultKubeletDir is --root-dir's default.
	defaultKubeletDir = "/var/lib/kubelet"
)

// gpuPrograms are the processes that matter to GPUs, by what they are called.
var gpuPrograms = []string{
	"nvidia-persistenced", "nv-fabricmanager", "nvidia-imex", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
	"nv-hostengine", "nvlsm",
}

// gpuProcesses returns those that run, by name.
func gpuProcesses(all []program) map[string][]int {
	found := map[string][]int{}
	for _, p := range all {
		for _, name := range gpuPrograms {
			if p.is(name) && len(found[name]) < maxPIDs {
				found[name] = append(found[name], p.pid)
			}
		}
	}
	return found
}

// units returns the systemd units of the processes that matter, by their cgroups, and when those processes began.
func (d *diagnosing) units(all []program, kubelet kubelet, runtime Runtime) []Unit {
	var units []Unit
	for _, p := range all {
		isRuntime := runtime.Instance != nil && p.pid == runtime.Instance.PID
		matters := p.pid == kubelet.PID || isRuntime || slices.ContainsFunc(gpuPrograms, p.is)
		if !matters || len(units) == maxPIDs {
			continue
		}
		raw, _ := os.ReadFile(p.proc + "/cgroup")
		inside := unitsOf(string(raw))
		name := ""
		switch {
		case isRuntime && runtime.Instance.Unit != "":
			name = runtime.Instance.Unit
		case len(inside) > 0 && !strings.Contains(string(raw), "kubepods"):
			// In a pod it would be the unit of the runtime
			name = inside[0]
		default:
			continue
		}
		stat, _ := os.ReadFile(p.proc + "/stat")
		units = append(units, Unit{Name: name, PID: p.pid, Started: d.clock.startOf(string(stat))})
	}
	return units
}

// kubeletFlags are settings that the command line overrides.
var kubeletFlags = []struct{ key, flag string }{
	{"cgroupDriver", "cgroup-driver"},
	{"cpuManagerPolicy", "cpu-manager-policy"},
	{"topologyManagerPolicy", "topology-manager-policy"},
	{"topologyManagerScope", "topology-manager-scope"},
	{"memoryManagerPolicy", "memory-manager-policy"},
}

// kubeletConfig reads the files that the kubelet was told to read, and its flags. What is in neither has its default,
// and is left out.
func (d *diagnosing) kubeletConfig(kubelet kubelet, problem string) (func(*Diagnosis), error) {
	if kubelet.PID == 0 {
		return nil, errors.New(problem)
	}
	root := kubelet.root(d.host)
	files := kubelet.kubeletConfigs(root)
	if kubelet.isEmbedded() { // k3s has its kubelet read these
		for _, name := range []string{"k3s", "rke2"} {
			files = append(files, glob(root, "/var/lib/rancher/"+name+"/agent/etc/kubelet.conf.d", "*.conf", 64)...)
		}
	}
	config, wrong := map[string]string{}, problems{}
	for _, file := range files {
		text, err := root.text(file, maxConfig)
		if err != nil {
			wrong.add("%w", err)
			continue
		}
		for _, setting := range kubeletFlags {
			if value := topLevel([]byte(text), setting.key); value != "" {
				config[setting.key] = shorten(value, 64)
			}
		}
	}
	args := kubelet.allArgs(root)
	for _, setting := range kubeletFlags {
		if value, ok := flagOf(args, setting.flag); ok {
			config[setting.key] = shorten(value, 64)
		}
	}
	return func(found *Diagnosis) { found.Probe.KubeletConfig = config }, wrong.err()
}

// kubeletDir returns the kubelet's --root-dir.
func (d *diagnosing) kubeletDir(kubelet kubelet) string {
	if kubelet.PID == 0 {
		return defaultKubeletDir
	}
	dir, _ := flagOf(kubelet.allArgs(kubelet.root(d.host)), "root-dir")
	return kubelet.abs(cmp.Or(dir, defaultKubeletDir))
}

// devicePlugins returns the sockets by which the kubelet and device plugins, and DRA drivers, talk; base is the
// kubelet's --root-dir.
func (d *diagnosing) devicePlugins(base string) (func(*Diagnosis), error) {
	var wrong problems
	var sockets []Socket
	if _, err := d.root.stat(base); err != nil {
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
				wrong.add("there are more than %d", maxSockets)
				break
			}
			name := path.Join(dir, e.Name())
			socket := Socket{Path: name}
			full, err := d.root.resolve(relative(name))
			if err == nil {
				socket.Listening = listens(full)
				if info, err := os.Stat(full); err == nil {
					socket.Modified = info.ModTime().UTC()
				}
			}
			sockets = append(sockets, socket)
		}
	}
	return func(found *Diagnosis) { found.Probe.DevicePlugins = sockets }, wrong.err()
}

// runtimeDir returns where the container runtime keeps images and containers; empty when it is not known.
func runtimeDir(runtime Runtime) string {
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
		if dir, ok := flagOf(i.Args[1:], "root"); ok && path.IsAbs(dir) {
			return path.Clean(dir)
		}
	}
	return "/var/lib/containerd"
}

package containerruntime

import (
	"path"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// place is where a distribution keeps its containerd.
type place struct {
	unit   string
	socket string
	exe    string   // a name is looked for in the usual folders
	root   string   // of the configuration
	dropIn []string // patterns of files that a configuration may import
}

// places are the well-known ones, the first of which is the usual one.
var places = []place{
	{unit: "containerd.service", socket: "/run/containerd/containerd.sock", exe: "containerd",
		root:   "/etc/containerd/config.toml",
		dropIn: []string{"/etc/containerd/conf.d/*.toml", "/etc/containerd/config.toml.d/*.toml"}},
	{unit: "k3s.service", socket: "/run/k3s/containerd/containerd.sock",
		exe:  "/var/lib/rancher/k3s/data/current/bin/containerd",
		root: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", dropIn: []string{
			"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml",
			"/var/lib/rancher/k3s/agent/etc/containerd/config.toml.d/*.toml",
		}},
	{unit: "rke2-agent.service", socket: "/run/k3s/containerd/containerd.sock",
		exe:  "/var/lib/rancher/rke2/bin/containerd",
		root: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml", dropIn: []string{
			"/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/*.toml",
			"/var/lib/rancher/rke2/agent/etc/containerd/config.toml.d/*.toml",
		}},
	{unit: "snap.microk8s.daemon-containerd.service", socket: "/var/snap/microk8s/common/run/containerd.sock",
		exe:  "/snap/microk8s/current/bin/containerd",
		root: "/var/snap/microk8s/current/args/containerd.toml"},
	{unit: "snap.k8s.containerd.service",
		socket: "/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock",
		exe:    "/snap/k8s/current/bin/containerd",
		root:   "/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml",
		dropIn: []string{"/var/lib/k8s-containerd/k8s-containerd/etc/containerd/conf.d/*.toml"}},
	{unit: "k0sworker.service", socket: "/run/k0s/containerd.sock", exe: "/var/lib/k0s/bin/containerd",
		root: "/etc/k0s/containerd.toml", dropIn: []string{"/etc/k0s/containerd.d/*.toml"}},
	{unit: "docker.service", exe: "containerd", root: "/var/run/docker/containerd/containerd.toml"},
}

// placeOf returns the one that listens at a socket. Several do at that of k3s: then it is the one whose configuration
// is there.
func placeOf(socket string, root hostfs.FS) (found place, known bool) {
	for _, p := range places {
		if p.socket != path.Clean(socket) {
			continue
		}
		if _, err := root.Info(p.root); err == nil {
			return p, true
		}
		if !known {
			found, known = p, true
		}
	}
	return found, known
}

// configPath returns the configuration that a containerd was told to load, or its own default.
func configPath(p process.Process) string {
	if file, ok := p.Flag("config", "c"); ok && file != "" {
		return p.Abs(file)
	}
	return "/etc/containerd/config.toml"
}

// socketOf returns where a containerd was told to listen, or its own default. A configuration may say otherwise; who
// listens is known from the kernel where it matters.
func socketOf(p process.Process) string {
	if file, ok := p.Flag("address", "a"); ok && file != "" {
		return p.Abs(file)
	}
	return "/run/containerd/containerd.sock"
}

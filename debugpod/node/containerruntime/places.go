package containerruntime

import (
	"path"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// place describes where a distribution installs containerd.
type place struct {
	unit   string
	socket string
	exe    string   // a name without a path is searched for in the usual directories
	root   string   // root configuration file
	dropIn []string // patterns of the files that the configuration may import
}

// places are the well-known locations, starting with the default.
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

// placeOf returns the place with the given socket. Several distributions use the socket of k3s; placeOf then returns
// the one whose configuration exists.
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

// configPath returns the path of the configuration on containerd's command line, or the default.
func configPath(p process.Process) string {
	if file, ok := p.Flag("config", "c"); ok && file != "" {
		return p.Abs(file)
	}
	return "/etc/containerd/config.toml"
}

// socketOf returns the socket on containerd's command line, or the default. The configuration may override it, so if
// the owner of the socket matters, it is verified with the kernel.
func socketOf(p process.Process) string {
	if file, ok := p.Flag("address", "a"); ok && file != "" {
		return p.Abs(file)
	}
	return "/run/containerd/containerd.sock"
}

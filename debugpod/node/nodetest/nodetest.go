// Package nodetest simulates nodes with files, for tests of the helper.
package nodetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// GPU returns a kubeadm node with a GPU, its driver, and the NVIDIA Container Toolkit.
func GPU(t *testing.T) *Node {
	t.Helper()
	n := Kubeadm(t)
	n.Write(n.Host.Proc+"/100/stat", "100 (kube (let)) S 1 100 100 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 50000 0 0", 0o644)
	n.Write(n.Host.Proc+"/100/cgroup", "0::/system.slice/kubelet.service\n", 0o644)
	n.Write(n.Host.Proc+"/50/cgroup", "0::/system.slice/containerd.service\n", 0o644)
	n.Process(70, 1, "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-persistenced", "--verbose")
	n.Write(n.Host.Proc+"/70/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-x.scope\n", 0o644)
	n.Write(n.Host.Proc+"/modules", "nvidia 9891840 2 nvidia_uvm, Live 0x0 (POE)\next4 1 1 - Live 0x0\n", 0o644)
	n.Write(n.Host.Proc+"/cmdline", "root=/dev/sda pci=realloc\n", 0o644)
	n.Write(n.Host.Proc+"/sys/fs/inotify/max_user_instances", "128\n", 0o644)
	n.File("/etc/os-release", "ID=ubuntu\nVERSION_ID=\"24.04\"\nHOME_URL=x\n")
	n.File("/proc/driver/nvidia/version",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
	n.File("/sys/module/nvidia/version", "570.86.15\n")
	n.File("/sys/module/nvidia/taint", "OE\n")
	n.File("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15", "")
	n.File("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.560.35.03", "")
	n.Link(n.Host.Root+"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.570.86.15")
	n.File("/usr/lib/modules/6.8.0-50-generic/updates/dkms/nvidia.ko.zst", "")
	n.File("/usr/lib/modules/6.8.0-50-generic/kernel/nvidia-570/bits/nvidia-uvm.ko", "")
	n.File("/usr/lib/modules/6.8.0-51-generic/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", "")
	n.Link(n.Host.Root+"/lib", "/usr/lib")
	n.File("/dev/nvidiactl", "")
	n.File("/sys/fs/cgroup/cgroup.controllers", "cpu\n")
	n.File("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\x00\x00\x00\x01")
	n.File("/sys/fs/selinux/enforce", "1")
	n.File("/run/nvidia/validations/driver-ready", "")
	n.File("/etc/nvidia-container-runtime/config.toml", "disable-require = false\n")
	n.Program("/usr/bin/nvidia-smi")
	n.Program("/usr/bin/nv-fabricmanager")
	n.Program("/usr/bin/nvidia-ctk")
	n.Program("/usr/bin/journalctl")
	n.Units["containerd.service"] = 50
	return n
}

// Tree creates files in a new directory. Content that starts with "-> " creates a symbolic link.
func Tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		full := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Node is a simulated node: a root directory, a /proc, and the output of its programs.
type Node struct {
	T     *testing.T
	Host  hostfs.Host
	CRI   map[string]*cri.Info // by socket path on the node
	Peers map[string]int       // PIDs by socket path on the node
	Units map[string]int       // MainPID by unit
}

func New(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	n := &Node{
		T: t, Host: hostfs.Host{Root: dir + "/root", Proc: dir + "/proc"}, CRI: map[string]*cri.Info{},
		Peers: map[string]int{}, Units: map[string]int{},
	}
	n.Process(1, 0, "/usr/lib/systemd/systemd", "/sbin/init")
	return n
}

func (n *Node) File(name, content string) {
	n.T.Helper()
	n.Write(n.Host.Root+name, content, 0o644)
}

func (n *Node) Program(name string) {
	n.T.Helper()
	n.Write(n.Host.Root+name, "#!/bin/sh\n", 0o755)
}

func (n *Node) Write(full, content string, mode fs.FileMode) {
	n.T.Helper()
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		n.T.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), mode); err != nil {
		n.T.Fatal(err)
	}
}

func (n *Node) Link(full, target string) {
	n.T.Helper()
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		n.T.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		n.T.Fatal(err)
	}
}

// Process adds a process in the node's mount namespace. Arguments after "env:" are environment variables, such as
// "PATH=/bin".
func (n *Node) Process(pid, parent int, exe string, args ...string) {
	n.T.Helper()
	dir := fmt.Sprintf("%s/%d", n.Host.Proc, pid)
	n.Write(dir+"/cmdline", strings.Join(args, "\x00")+"\x00", 0o644)
	n.Write(dir+"/environ", "PATH=/opt/bin:/usr/bin\x00SNAP_DATA=/var/snap/x/1\x00", 0o644)
	n.Write(dir+"/stat", fmt.Sprintf("%d (%s) S %d 1 1 0", pid, filepath.Base(exe), parent), 0o644)
	n.Link(dir+"/exe", exe)
	n.Link(dir+"/root", n.Host.Root)
	n.Link(dir+"/ns/pid", "pid:[4026531836]")
}

// Listen adds a socket of the process, at a path on the node.
func (n *Node) Listen(pid int, socket string, info *cri.Info) {
	n.T.Helper()
	n.File(socket, "")
	n.Peers[socket], n.CRI[socket] = pid, info
}

// Ask returns the container runtime's response on a socket.
func (n *Node) Ask(_ context.Context, full string) (*cri.Info, error) {
	if info := n.CRI["/"+hostfs.RelativeTo(n.Host.Root, full)]; info != nil {
		return info, nil
	}
	return nil, errors.New("connection refused")
}

// Peer returns the process that listens on a socket.
func (n *Node) Peer(full string) (int, error) {
	if pid := n.Peers["/"+hostfs.RelativeTo(n.Host.Root, full)]; pid != 0 {
		return pid, nil
	}
	return 0, errors.New("connection refused")
}

// Run returns the output of systemctl or `containerd --version`.
func (n *Node) Run(_ context.Context, _ hostfs.FS, _ string, args ...string) (string, error) {
	if args[0] == "systemctl" {
		return fmt.Sprintln(n.Units[args[len(args)-1]]), nil
	}
	return fmt.Sprintf("%s github.com/containerd/containerd v1.7.28 abc\n", args[0]), nil
}

func ContainerdInfo(handlers ...string) *cri.Info {
	var entries []string
	for _, h := range handlers {
		entries = append(entries, fmt.Sprintf(`%q:{"runtimeType":"io.containerd.runc.v2","options":{}}`, h))
	}
	return &cri.Info{Name: "containerd", Version: "v2.1.4", Ready: true, Handlers: handlers,
		Config: []byte(`{"containerd":{"defaultRuntimeName":"runc","runtimes":{` + strings.Join(entries, ",") + `}}}`)}
}

func Handler(name, binary string) string {
	return fmt.Sprintf(
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]\nruntime_type = 'io.containerd.runc.v2'\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s.options]\nBinaryName = '%s'\n",
		name, name, binary,
	)
}

// Kubeadm returns a kubeadm node with the default socket and configuration file, and a drop-in.
func Kubeadm(t *testing.T) *Node {
	n := New(t)
	n.Process(100, 1, "/usr/bin/kubelet", "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml")
	n.Process(50, 1, "/usr/bin/containerd", "/usr/bin/containerd")
	n.File("/var/lib/kubelet/config.yaml",
		"kind: KubeletConfiguration\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: \"\"\n")
	n.Listen(50, "/run/containerd/containerd.sock", ContainerdInfo("runc", "nvidia"))
	n.File("/etc/containerd/config.toml", "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n")
	n.File("/etc/containerd/conf.d/99-nvidia.toml",
		"version = 3\n"+Handler("nvidia", "/usr/bin/nvidia-container-runtime"))
	n.Write(n.Host.Proc+"/50/cgroup", "0::/system.slice/containerd.service\n", 0o644)
	n.Units["containerd.service"] = 50
	n.Program("/usr/bin/containerd-shim-runc-v2")
	return n
}

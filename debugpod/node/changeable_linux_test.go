package node

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
)

// TestChangeable: what a change may name is what the kubelet's containerd loads, would load, or another containerd
// does.
func TestChangeable(t *testing.T) {
	t.Parallel()
	n := kubeadm(t)
	n.file("/etc/containerd/conf.d/ignored.conf", "")
	n.file("/etc/k0s/containerd.toml", "version = 2\nimports = ['/etc/k0s/more.toml']\n")
	n.file("/etc/k0s/more.toml", "")
	got, err := changeable(n.inspect())
	if err != nil {
		t.Fatal(err)
	}
	want := guard.Runtime{
		Unit: "containerd.service", Socket: "/run/containerd/containerd.sock",
		Files: []string{
			"/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml", "/etc/k0s/containerd.toml",
		},
		New:   []string{"/etc/containerd/zz-gpu-fault.toml", "/etc/containerd-decoy.toml"},
		Globs: []string{"/etc/containerd/conf.d/*.toml"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestChangeableNeedsTheRuntime: where the runtime is unknown, so are its files.
func TestChangeableNeedsTheRuntime(t *testing.T) {
	t.Parallel()
	n := kubeadm(t)
	_ = os.RemoveAll(n.host.Proc + "/100")
	if got, err := changeable(n.inspect()); err == nil || !strings.Contains(err.Error(), "no kubelet runs") {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := changeable(Runtime{}); err == nil {
		t.Errorf("%+v", got)
	}
}

// TestOnlyRootsProcessesCount: every user may call a process kubelet or containerd, and name any file and socket in its
// arguments.
func TestOnlyRootsProcessesCount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changes the owners of files: run the tests as root")
	}
	const theirs = "/etc/secret.toml"
	for name, pretend := range map[string]func(n *fakeNode){
		"another user's containerd": func(n *fakeNode) {
			if err := os.Chown(n.host.Proc+"/60", 1000, 1000); err != nil {
				t.Fatal(err)
			}
		},
		"a container's containerd": func(n *fakeNode) { n.link(n.host.Proc+"/60/ns/mnt", "mnt:[4026539999]") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := kubeadm(t)
			n.file(theirs, "version = 2\n")
			n.process(60, 1, "/home/u/containerd", "containerd", "--config", theirs, "--address=/home/u/c.sock")
			got, err := changeable(n.inspect())
			if err != nil || !slices.Contains(got.Files, theirs) {
				t.Errorf("root's own: %+v, %v", got, err)
			}
			pretend(n)
			found := n.inspect()
			got, err = changeable(found)
			if err != nil || slices.Contains(got.Files, theirs) {
				t.Errorf("%+v, %v", got, err)
			}
			if f := found.Decoys[0].Files[0]; !strings.Contains(f.ReadOnly, "does not run as root on the node itself") {
				t.Errorf("%s: read-only %q", f.Path, f.ReadOnly)
			}
		})
	}
	t.Run("another user's kubelet", func(t *testing.T) {
		t.Parallel()
		n := kubeadm(t)
		n.process(101, 1, "/home/u/kubelet", "kubelet", "--container-runtime-endpoint=unix:///home/u/c.sock")
		if got := n.inspect(); !strings.Contains(got.Problem, "2 kubelets") {
			t.Errorf("root's own: problem %q", got.Problem)
		}
		if err := os.Chown(n.host.Proc+"/101", 1000, 1000); err != nil {
			t.Fatal(err)
		}
		if got := n.inspect(); got.Problem != "" || got.Kubelet.PID != 100 {
			t.Errorf("kubelet %d, problem %q", got.Kubelet.PID, got.Problem)
		}
	})
}

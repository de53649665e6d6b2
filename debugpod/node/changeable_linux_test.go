package node

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman/guard"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/containerruntime"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// inspectFake finds the container runtime of a fake node.
func inspectFake(n *nodetest.Node) api.Runtime {
	n.T.Helper()
	in := containerruntime.New(n.Host)
	in.Ask, in.Peer, in.Run = n.Ask, n.Peer, n.Run
	found, _ := in.Found(n.T.Context())
	return found
}

// TestChangeable: what a change may name is what the kubelet's containerd loads, would load, or another containerd
// does.
func TestChangeable(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	n.File("/etc/containerd/conf.d/ignored.conf", "")
	n.File("/etc/k0s/containerd.toml", "version = 2\nimports = ['/etc/k0s/more.toml']\n")
	n.File("/etc/k0s/more.toml", "")
	got, err := changeable(inspectFake(n))
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
	n := nodetest.Kubeadm(t)
	_ = os.RemoveAll(n.Host.Proc + "/100")
	if got, err := changeable(inspectFake(n)); err == nil || !strings.Contains(err.Error(), "no kubelet is running") {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := changeable(api.Runtime{}); err == nil {
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
	for name, pretend := range map[string]func(n *nodetest.Node){
		"another user's containerd": func(n *nodetest.Node) {
			if err := os.Chown(n.Host.Proc+"/60", 1000, 1000); err != nil {
				t.Fatal(err)
			}
		},
		"a container's containerd": func(n *nodetest.Node) { n.Link(n.Host.Proc+"/60/ns/mnt", "mnt:[4026539999]") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.Kubeadm(t)
			n.File(theirs, "version = 2\n")
			n.Process(60, 1, "/home/u/containerd", "containerd", "--config", theirs, "--address=/home/u/c.sock")
			got, err := changeable(inspectFake(n))
			if err != nil || !slices.Contains(got.Files, theirs) {
				t.Errorf("root's own: %+v, %v", got, err)
			}
			pretend(n)
			found := inspectFake(n)
			got, err = changeable(found)
			if err != nil || slices.Contains(got.Files, theirs) {
				t.Errorf("%+v, %v", got, err)
			}
			if f := found.Decoys[0].Files[0]; !strings.Contains(f.ReadOnly, "does not run as root directly") {
				t.Errorf("%s: read-only %q", f.Path, f.ReadOnly)
			}
		})
	}
	t.Run("another user's kubelet", func(t *testing.T) {
		t.Parallel()
		n := nodetest.Kubeadm(t)
		n.Process(101, 1, "/home/u/kubelet", "kubelet", "--container-runtime-endpoint=unix:///home/u/c.sock")
		if got := inspectFake(n); !strings.Contains(got.Problem, "2 kubelets") {
			t.Errorf("root's own: problem %q", got.Problem)
		}
		if err := os.Chown(n.Host.Proc+"/101", 1000, 1000); err != nil {
			t.Fatal(err)
		}
		if got := inspectFake(n); got.Problem != "" || got.Kubelet.PID != 100 {
			t.Errorf("kubelet %d, problem %q", got.Kubelet.PID, got.Problem)
		}
	})
}

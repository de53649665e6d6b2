package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

func inspectFake(n *nodetest.Node) api.Runtime {
	n.T.Helper()
	found, _ := inspectionOf(n, n.Host).Found(n.T.Context())
	return found
}

func inspectionOf(n *nodetest.Node, host hostfs.Host) *Inspection {
	n.T.Helper()
	in := New(host)
	in.Ask, in.Peer, in.Run = n.Ask, n.Peer, n.Run
	return in
}

func TestInspectKubeadm(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	got := inspectFake(n)
	i := got.Instance
	if i == nil {
		t.Fatalf("no instance: %s", got.Problem)
	}
	want := api.Kubelet{
		PID: 100, Exe: "/usr/bin/kubelet", Endpoint: "unix:///run/containerd/containerd.sock", EndpointFrom: "default",
		CgroupDriver: "systemd",
	}
	if diff := cmp.Diff(want, got.Kubelet); diff != "" {
		t.Error(diff)
	}
	if got.Problem != "" || len(got.Warnings) > 0 || len(got.Decoys) > 0 {
		t.Errorf("a healthy node has problem %q, warnings %q, decoys %+v", got.Problem, got.Warnings, got.Decoys)
	}
	if i.PID != 50 || i.Unit != "containerd.service" || i.Release != "v2.1.4" ||
		i.Socket != "/run/containerd/containerd.sock" {
		t.Errorf("instance %+v", i)
	}
	if paths := filePaths(*i); !slices.Equal(
		paths, []string{"/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"},
	) {
		t.Errorf("it loads %q", paths)
	}
	for _, f := range i.Files {
		if f.Meta.Mode != 0o644 || f.Meta.ModTime.IsZero() || f.ReadOnly != "" {
			t.Errorf("%s: %+v read-only %q", f.Path, f.Meta, f.ReadOnly)
		}
	}
	executables := map[string]string{
		"containerd-shim-runc-v2": "", "/usr/bin/nvidia-container-runtime": "missing",
		"runc": "not found in PATH (/opt/bin:/usr/bin)",
	}
	if diff := cmp.Diff(executables, i.Executables); diff != "" {
		t.Error(diff)
	}
}

func filePaths(i api.Instance) []string {
	var paths []string
	for _, f := range i.Files {
		paths = append(paths, f.Path)
	}
	return paths
}

// Who says which runtime the kubelet uses, and in which order they count.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	const socket, other = "/run/c/c.sock", "/run/other.sock"
	for name, test := range map[string]struct {
		exe   string
		args  []string
		files map[string]string
		want  string // endpoint from
	}{
		"flag": {
			"/usr/bin/kubelet", []string{"kubelet", "--container-runtime-endpoint=unix://" + socket}, nil,
			"unix:///run/c/c.sock from --container-runtime-endpoint",
		},
		"flag without scheme": {
			"/usr/bin/kubelet", []string{"kubelet", "--container-runtime-endpoint", socket}, nil,
			"unix:///run/c/c.sock from --container-runtime-endpoint",
		},
		"config file": {"/usr/bin/kubelet", []string{"kubelet", "--config", "/k.yaml"},
			map[string]string{"/k.yaml": "a: b\ncontainerRuntimeEndpoint: unix:///run/c/c.sock # ours\n"},
			"unix:///run/c/c.sock from /k.yaml"},
		"config file in JSON": {"/usr/bin/kubelet", []string{"kubelet", "--config=/k.json"},
			map[string]string{"/k.json": `{"containerRuntimeEndpoint": "unix:///run/c/c.sock"}`},
			"unix:///run/c/c.sock from /k.json"},
		"flag before config file": {"/usr/bin/kubelet",
			[]string{"kubelet", "--config=/k.yaml", "--container-runtime-endpoint=unix://" + socket},
			map[string]string{"/k.yaml": "containerRuntimeEndpoint: unix://" + other},
			"unix:///run/c/c.sock from --container-runtime-endpoint"},
		"drop-in after config file": {"/usr/bin/kubelet", []string{"kubelet", "--config=/k.yaml", "--config-dir=/k.d"},
			map[string]string{
				"/k.yaml":        "containerRuntimeEndpoint: unix://" + other,
				"/k.d/10-a.conf": "containerRuntimeEndpoint: 'unix://" + socket + "'",
				"/k.d/20-b.yaml": "containerRuntimeEndpoint: unix:///not.read",
			},
			"unix:///run/c/c.sock from /k.d/10-a.conf"},
		"default": {
			"/usr/bin/kubelet", []string{"kubelet"}, nil, "unix:///run/containerd/containerd.sock from default",
		},
		"called by its name": {
			"/opt/bin/multicall", []string{"kubelet"}, nil, "unix:///run/containerd/containerd.sock from default",
		},
		"hyperkube": {
			"/hyperkube", []string{"/hyperkube", "kubelet", "--container-runtime-endpoint=" + socket}, nil,
			"unix:///run/c/c.sock from --container-runtime-endpoint",
		},
		"k3s": {
			"/usr/local/bin/k3s", []string{"/usr/local/bin/k3s server"}, nil,
			"unix:///run/k3s/containerd/containerd.sock from k3s",
		},
		"k3s with a flag": {
			"/usr/local/bin/k3s", []string{"/usr/local/bin/k3s", "agent", "--container-runtime-endpoint", socket}, nil,
			"unix:///run/c/c.sock from --container-runtime-endpoint",
		},
		"k3s with a file": {"/usr/local/bin/k3s", []string{"/usr/local/bin/k3s", "agent"},
			map[string]string{"/etc/rancher/k3s/config.yaml": "container-runtime-endpoint: " + socket},
			"unix:///run/c/c.sock from /etc/rancher/k3s/config.yaml"},
		"k3s with docker": {
			"/usr/local/bin/k3s", []string{"k3s", "server", "--docker"}, nil,
			"unix:///run/k3s/cri-dockerd/cri-dockerd.sock from --docker",
		},
		"microk8s": {"/snap/microk8s/1/kubelite",
			[]string{"/snap/microk8s/1/kubelite", "--kubelet-args-file=${SNAP_DATA}/args/kubelet"},
			map[string]string{
				"/var/snap/x/1/args/kubelet": "--kubeconfig=${SNAP_DATA}/k\n--container-runtime-endpoint=${SNAP_DATA}/c.sock\n",
			}, "unix:///var/snap/x/1/c.sock from /var/snap/x/1/args/kubelet"},
		"microk8s without a flag": {
			"/snap/microk8s/1/kubelite", []string{"/snap/microk8s/1/kubelite"}, nil,
			"unix:///var/snap/microk8s/common/run/containerd.sock from kubelite",
		},
		"canonical k8s": {"/snap/k8s/1/bin/kubelet", []string{"/snap/k8s/1/bin/kubelet"},
			map[string]string{"/var/snap/k8s/common/args/kubelet": "--container-runtime-endpoint=" + socket},
			"unix:///run/c/c.sock from /var/snap/k8s/common/args/kubelet"},
		"not a kubelet": {"/usr/local/bin/k3s", []string{"k3s", "kubectl", "get", "nodes"}, nil, " from "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.New(t)
			n.Process(100, 1, test.exe, test.args...)
			for file, content := range test.files {
				n.File(file, content)
			}
			got := inspectFake(n)
			if said := got.Kubelet.Endpoint + " from " + got.Kubelet.EndpointFrom; said != test.want {
				t.Errorf("got %q, want %q (problem: %s)", said, test.want, got.Problem)
			}
		})
	}
}

// A busy kubelet starts programs all the time. Between fork and exec, its child looks like the kubelet itself, and must
// not count as a second one.
func TestAForkedChildIsNotASecondKubelet(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	want := inspectFake(n).Kubelet
	for _, p := range process.All(n.Host.Proc) {
		if p.PID == want.PID {
			n.Process(2303, p.PID, p.Exe, p.Args...)
		}
	}
	if got := inspectFake(n); got.Problem != "" || got.Kubelet != want {
		t.Errorf("with a child of the kubelet: problem %q, kubelet %+v; want %+v", got.Problem, got.Kubelet, want)
	}
}

// What cannot be told is a problem in words, never a guess.
func TestProblems(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change       func(*nodetest.Node)
		want         string
		wantInstance bool
	}{
		"no kubelet": {
			func(n *nodetest.Node) { _ = os.RemoveAll(n.Host.Proc + "/100") },
			"no kubelet is running on this node", false,
		},
		"two kubelets": {
			func(n *nodetest.Node) { n.Process(101, 1, "/snap/k8s/1/bin/kubelet", "kubelet") },
			"2 kubelets are running on this node", false,
		},
		"CRI-O": {func(n *nodetest.Node) {
			n.CRI["/run/containerd/containerd.sock"] = &cri.Info{Name: "cri-o", Version: "1.33.0", Ready: true}
		}, "the kubelet on this node uses CRI-O 1.33.0; runtime faults require containerd", true},
		"not a unix socket": {func(n *nodetest.Node) {
			n.File("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: npipe://./pipe/x")
		}, "only unix sockets are supported", false},
		"containerd is down": {func(n *nodetest.Node) {
			_ = os.Remove(n.Host.Root + "/run/containerd/containerd.sock")
			_ = os.RemoveAll(n.Host.Proc + "/50")
		},
			"no container runtime is listening on /run/containerd/containerd.sock, which the kubelet uses: the socket does not exist; by convention, the runtime is the containerd of unit containerd.service, which reads /etc/containerd/config.toml",
			true},
		"a socket that is nobody's": {func(n *nodetest.Node) {
			n.File("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/mine.sock")
			n.File("/run/mine.sock", "")
		}, "no container runtime is listening on /run/mine.sock, which the kubelet uses: connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.Kubeadm(t)
			test.change(n)
			got := inspectFake(n)
			if !strings.Contains(got.Problem, test.want) || (got.Instance != nil) != test.wantInstance {
				t.Errorf("problem %q (wanted %q), instance %+v", got.Problem, test.want, got.Instance)
			}
		})
	}
}

// A kubelet of a nested node, as kind runs it, is not the node's.
func TestNestedKubeletIsLeftOut(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	n.Process(101, 1, "/usr/bin/kubelet", "kubelet")
	_ = os.Remove(n.Host.Proc + "/101/ns/pid")
	n.Link(n.Host.Proc+"/101/ns/pid", "pid:[4026539999]")
	if got := inspectFake(n); got.Problem != "" || got.Kubelet.PID != 100 {
		t.Errorf("kubelet %d, problem %q", got.Kubelet.PID, got.Problem)
	}
}

// The bug of rt.wrong-instance: the NVIDIA handler is in the configuration of a containerd that the kubelet does not
// use.
func TestDecoys(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	const socket, config = "/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock",
		"/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml"
	n.Process(60, 1, "/snap/k8s/1/bin/containerd", "/snap/k8s/1/bin/containerd", "--config", config,
		"--address="+socket, "--root", "/var/lib/k8s-containerd")
	n.File(config, "version = 3\n")
	n.Listen(60, socket, nodetest.ContainerdInfo("runc"))
	n.File("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix://"+socket)
	n.File("/etc/containerd/config.toml.d/inert.toml", nodetest.Handler("inert", "x"))
	n.File("/etc/k0s/containerd.toml", "version = 2\n")
	n.Units["snap.k8s.containerd.service"] = 60
	// None of these is a containerd that anybody could mistake for it.
	n.Process(70, 1, "/usr/bin/containerd-shim-runc-v2", "containerd-shim-runc-v2", "-namespace", "k8s.io")
	n.Process(71, 1, "/usr/bin/ctr", "ctr", "images", "ls")
	n.Process(72, 50, "/usr/bin/containerd", "containerd", "--version")

	got := inspectFake(n)
	if got.Instance == nil || got.Instance.PID != 60 || got.Instance.ConfigPath != config ||
		got.Instance.Unit != "snap.k8s.containerd.service" {
		t.Fatalf("problem %q, instance %+v", got.Problem, got.Instance)
	}
	var decoys []string
	for _, d := range got.Decoys {
		decoys = append(decoys, fmt.Sprint(d.PID, " ", strings.Join(filePaths(d), " ")))
	}
	want := []string{
		"50 /etc/containerd/config.toml /etc/containerd/conf.d/99-nvidia.toml",
		"0 /etc/k0s/containerd.toml",
		"0 /etc/containerd/config.toml.d/inert.toml",
	}
	if diff := cmp.Diff(want, decoys); diff != "" {
		t.Error(diff)
	}
	merged, err := got.Decoys[0].OnDisk()
	if err != nil || merged.Handlers["nvidia"].BinaryName == "" {
		t.Errorf("the decoy's handlers: %+v %v", merged, err)
	}
}

// A containerd in a mount namespace of its own sees its own files: writing the node's would change nothing.
func TestOwnMountNamespace(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	own := t.TempDir()
	_ = os.Remove(n.Host.Proc + "/50/root")
	n.Link(n.Host.Proc+"/50/root", own)
	n.Write(own+"/etc/containerd/config.toml", "imports = ['/only/here.toml']", 0o600)
	n.Write(own+"/only/here.toml", "", 0o600)
	got := inspectFake(n)
	if got.Instance == nil || len(got.Instance.Files) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []string{"this path is a different file than on the node", "the file exists only there"} {
		if f := got.Instance.Files[i]; !strings.Contains(f.ReadOnly, want) {
			t.Errorf("%s: read-only %q, wanted %q", f.Path, f.ReadOnly, want)
		}
	}
}

// A configuration may be a link; what lies beside the content is that of the file it leads to.
func TestLinkedConfig(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	n.Write(n.Host.Root+"/opt/real.toml", "version = 3\n", 0o600)
	_ = os.Remove(n.Host.Root + "/etc/containerd/config.toml")
	n.Link(n.Host.Root+"/etc/containerd/config.toml", "/opt/real.toml")
	got := inspectFake(n)
	if f := got.Instance.Files[0]; f.Meta.Link != "/opt/real.toml" || f.Meta.Mode != 0o600 || f.ReadOnly != "" {
		t.Errorf("%+v", f)
	}
}

// In somebody's container a configuration may be anything. We neither wait for a pipe nor read without end.
func TestStrangeConfigs(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	_ = os.Remove(n.Host.Root + "/etc/containerd/config.toml")
	n.Link(n.Host.Root+"/etc/containerd/config.toml", "../../huge")
	n.File("/huge", "")
	if err := os.Truncate(n.Host.Root+"/huge", hostfs.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	if got := inspectFake(n); !strings.Contains(got.Instance.ConfigError, "larger than") {
		t.Errorf("error %q", got.Instance.ConfigError)
	}
}

// A broken configuration is shown: it is what the user looks for.
func TestBrokenConfig(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	n.File("/etc/containerd/config.toml", "version = \n")
	n.CRI["/run/containerd/containerd.sock"] = nil
	got := inspectFake(n)
	i := got.Instance
	if i == nil || len(i.Files) != 1 || !strings.Contains(i.ConfigError, "line 1") || i.CRIError == "" || i.CRI != nil {
		t.Errorf("%+v", i)
	}
}

// What was found when the client went away looks like a runtime that is down, and must not be taken for the truth.
func TestStopped(t *testing.T) {
	t.Parallel()
	n := nodetest.Kubeadm(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client is gone"))
	if got := Inspect(ctx, n.Host); got.Instance != nil || !strings.Contains(got.Problem, "the client is gone") {
		t.Errorf("problem %q, instance %+v", got.Problem, got.Instance)
	}
}

func TestListening(t *testing.T) {
	t.Parallel()
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000011233c07: 00000002 00000000 00010000 0001 01 38605 /run/containerd/containerd.sock.ttrpc
000000001a7e11a1: 00000002 00000000 00010000 0001 01 38606 /run/containerd/containerd.sock
00000000565be6a8: 00000003 00000000 00000000 0001 03 41095 /run/containerd/containerd.sock
00000000565be6a9: 00000003 00000000 00000000 0001 03 41096
00000000565be6aa: 00000002 00000000 00010000 0001 01 7 /run/with a blank
`
	for name, want := range map[string]string{
		"/run/containerd/containerd.sock": "socket:[38606]", "/run/with a blank": "socket:[7]", "/run/none": "",
	} {
		if got := strings.Join(listening(table, []string{name}), " "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

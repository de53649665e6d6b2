package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

const (
	snapConfig = "/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml"
	snapSocket = "/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock"
	nvidia     = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
)

var modified = time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)

func configFile(path, data string) api.ConfigFile {
	return api.ConfigFile{Path: path, Data: []byte(data), Meta: deadman.Meta{Mode: 0o644, ModTime: modified}}
}

// onDisk returns a handler in a file, inMemory the same in CRI's status.
func onDisk(name, binary string, systemd bool) string {
	table := "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + name
	text := table + "]\nruntime_type = 'io.containerd.runc.v2'\n" + table + ".options]\n"
	if binary != "" {
		text += fmt.Sprintf("BinaryName = '%s'\n", binary)
	}
	return text + fmt.Sprintf("SystemdCgroup = %t\n", systemd)
}

func inMemory(name, binary string, systemd bool) string {
	return fmt.Sprintf(`%q:{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":%q,"SystemdCgroup":%t}}`,
		name, binary, systemd)
}

func info(handlers ...string) *cri.Info {
	return &cri.Info{Name: "containerd", Version: "v2.1.4", Ready: true,
		Config: json.RawMessage(
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{` + strings.Join(handlers, ",") + `}}}`,
		)}
}

// healthy returns a node of kubeadm with the toolkit's drop-in.
func healthy() api.Runtime {
	return api.Runtime{
		Kubelet: api.Kubelet{
			PID: 100, Exe: "/usr/bin/kubelet", Endpoint: "unix:///run/containerd/containerd.sock",
			EndpointFrom: "default", CgroupDriver: "systemd",
		},
		Instance: &api.Instance{
			PID: 50, Exe: "/usr/bin/containerd", Args: []string{"/usr/bin/containerd"},
			Socket: "/run/containerd/containerd.sock", Unit: "containerd.service",
			ConfigPath: "/etc/containerd/config.toml", Release: "v2.1.4",
			CRI: info(inMemory("runc", "", true), inMemory("nvidia", nvidia, true)),
			Files: []api.ConfigFile{
				configFile("/etc/containerd/config.toml",
					"version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"+onDisk("runc", "", true)),
				configFile("/etc/containerd/conf.d/99-nvidia.toml", "version = 3\n"+onDisk("nvidia", nvidia, true)),
			},
			Executables: map[string]string{"runc": "", nvidia: "", "containerd-shim-runc-v2": ""},
		},
	}
}

// wrongInstance returns the bug that this command is for: the toolkit edits /etc/containerd/config.toml, which exists,
// is loaded by a containerd that runs, and is not the kubelet's.
func wrongInstance() api.Runtime {
	r := healthy()
	decoy := *r.Instance
	decoy.CRI = nil
	r.Decoys = []api.Instance{decoy, {
		ConfigPath: "/etc/k0s/containerd.toml",
		Files:      []api.ConfigFile{configFile("/etc/k0s/containerd.toml", "version = 2\n")},
	}}
	r.Kubelet.Endpoint, r.Kubelet.EndpointFrom = "unix://"+snapSocket, "/var/snap/k8s/common/args/kubelet"
	r.Instance = &api.Instance{
		PID: 60, Exe: "/snap/k8s/1/bin/containerd", Socket: snapSocket, Unit: "snap.k8s.containerd.service",
		ConfigPath: snapConfig, Release: "v2.1.4",
		CRI:         info(inMemory("runc", "", true)),
		Files:       []api.ConfigFile{configFile(snapConfig, "version = 3\n"+onDisk("runc", "", true))},
		Executables: map[string]string{"runc": "", "containerd-shim-runc-v2": ""},
	}
	return r
}

// edited has one handler of each kind of difference between disk and memory, a binary that is missing and another
// cgroup driver.
func edited() api.Runtime {
	r := healthy()
	i := r.Instance
	i.CRI = info(inMemory("runc", "", true), inMemory("nvidia", nvidia, true), inMemory("nvidia-gone", nvidia, true))
	i.Files[1] = configFile("/etc/containerd/conf.d/99-nvidia.toml",
		"version = 3\n"+onDisk("nvidia", nvidia+".new", true)+onDisk("nvidia-cdi", nvidia, false))
	i.Files[0].Meta.Link = "/opt/real.toml"
	i.Files[1].ReadOnly = "the file system is mounted read-only"
	i.Executables[nvidia+".new"] = "missing"
	return r
}

func crio() api.Runtime {
	r := healthy()
	r.Problem = "the kubelet on this node uses CRI-O 1.33.0; runtime faults require containerd"
	r.Instance = &api.Instance{PID: 50, Exe: "/usr/bin/crio", Socket: "/var/run/crio/crio.sock", Unit: "crio.service",
		Release: "1.33.0",
		CRI:     &cri.Info{Name: "cri-o", Version: "1.33.0", Ready: true}}
	return r
}

func unparsable() api.Runtime {
	r := healthy()
	r.Instance.Files = []api.ConfigFile{configFile("/etc/containerd/config.toml", "version = \n")}
	r.Instance.ConfigError =
		"containerd cannot load /etc/containerd/config.toml: line 1, column 11: unexpected end of line"
	return r
}

func TestView(t *testing.T) {
	t.Parallel()
	classes := []runtimeClass{{Name: "nvidia", Handler: "nvidia"}, {Name: "kata", Handler: "kata"}}
	toolkits := []toolkit{{Namespace: "gpu-operator", Name: "nvidia-container-toolkit-daemonset", Container: "ctr",
		MatchesNode: true, Settings: []setting{
			{
				Name: "CONTAINERD_CONFIG", Value: "/runtime/config-dir/config.toml",
				OnNode: "/etc/containerd/config.toml",
			},
			{Name: "RUNTIME_RESTART_MODE", Value: "signal"},
		}}}
	for name, found := range map[string]api.Runtime{
		"healthy": healthy(), "wrong-instance": wrongInstance(), "edited": edited(), "crio": crio(),
		"unparsable": unparsable(),
		"no-kubelet": {Problem: "no kubelet is running on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newView("gpu-1", found, classes, toolkits)
			v.local = time.UTC
			for suffix, format := range map[string]printer.Format{"": {}, "-wide": {Output: "wide"}} {
				var out bytes.Buffer
				if err := v.write(&out, format); err != nil {
					t.Fatal(err)
				}
				golden.Compare(t, "show-"+name+suffix+".golden", out.String())
			}
			var out bytes.Buffer
			if err := (printer.Format{Output: "json"}).Object(&out, v); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "show-"+name+".json.golden", out.String())
		})
	}
}

// A healthy node has nothing to complain about, and each fault has its own name.
func TestFindings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		found api.Runtime
		want  string
	}{
		"healthy":        {healthy(), ""},
		"wrong instance": {wrongInstance(), "rt.wrong-instance"},
		"edited":         {edited(), "rt.edited-not-restarted rt.binary-missing rt.cgroup-driver"},
		"CRI-O":          {crio(), ""},
		"unparsable":     {unparsable(), "rt.unparsable"},
		"not ready": {func() api.Runtime {
			r := healthy()
			r.Instance.CRI, r.Instance.CRIError = nil, cri.ErrNotLoaded.Error()
			return r
		}(), "rt.not-ready"},
		"no runc in the file": {func() api.Runtime {
			r := healthy() // then it is built in, and not stale
			r.Instance.Files[0] = configFile("/etc/containerd/config.toml",
				"version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n")
			return r
		}(), ""},
		"no shim": {func() api.Runtime {
			r := healthy()
			r.Instance.Executables["containerd-shim-runc-v2"] = "not found in PATH (/bin)"
			return r
		}(), "rt.runtime-type"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ids []string
			for _, f := range newView("gpu-1", test.found, nil, nil).Findings {
				ids = append(ids, f.ID)
			}
			if got := strings.Join(ids, " "); got != test.want {
				t.Errorf("findings %q, wanted %q", got, test.want)
			}
		})
	}
}

// A configuration may hold the password of a registry.
func TestViewHasNoContents(t *testing.T) {
	t.Parallel()
	r := healthy()
	r.Instance.Files[0] = configFile("/etc/containerd/config.toml",
		"version = 3\n[plugins.'io.containerd.cri.v1.images'.registry.configs.x.auth]\npassword = 'hunter2'\n")
	raw, err := json.Marshal(newView("gpu-1", r, nil, nil))
	if err != nil || strings.Contains(string(raw), "hunter2") || strings.Contains(string(raw), "aHVudGVyM") {
		t.Errorf("the view has a secret, or cannot be printed: %v", err)
	}
}

// The operator mounts the folder of the configuration under another name.
func TestToolkitOnNode(t *testing.T) {
	t.Parallel()
	set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "toolkit"}}
	set.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector: map[string]string{"gpu": "yes"},
		Containers: []corev1.Container{
			{Name: "other", Image: "busybox"},
			{
				Name: "ctr", Image: "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
				Env: []corev1.EnvVar{
					{Name: "CONTAINERD_CONFIG", Value: "/runtime/config-dir/config.toml"},
					{Name: "RUNTIME_CONFIG_SOURCE", Value: "file=/runtime/config-dir/config.toml"},
					{Name: "RUNTIME_RESTART_MODE", Value: "signal"},
					{Name: "RUNTIME_SOCKET", Value: "/elsewhere/c.sock"}, {Name: "NGC_API_KEY", Value: "secret"},
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "root", MountPath: "/runtime"}, {Name: "config", MountPath: "/runtime/config-dir/"},
				},
			},
		},
		Volumes: []corev1.Volume{
			{Name: "root", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{
				Name:         "config",
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/containerd"}},
			},
		},
	}
	client := fake.NewClientset(&set,
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"})
	classes, toolkits, warnings := readCluster(t.Context(), client, map[string]string{"gpu": "yes"})
	if len(warnings) > 0 || len(classes) != 1 || len(toolkits) != 1 {
		t.Fatalf("%v %v %q", classes, toolkits, warnings)
	}
	want := "[{CONTAINERD_CONFIG /runtime/config-dir/config.toml /etc/containerd/config.toml} " +
		"{RUNTIME_CONFIG_SOURCE file=/runtime/config-dir/config.toml /etc/containerd/config.toml} {RUNTIME_RESTART_MODE signal } {RUNTIME_SOCKET /elsewhere/c.sock }]"
	if got := fmt.Sprint(toolkits[0].Settings); got != want || !toolkits[0].MatchesNode {
		t.Errorf("got %s on node: %t, want %s", got, toolkits[0].MatchesNode, want)
	}
}

// Who may not list DaemonSets and RuntimeClasses still sees the node.
func TestClusterMayNotBeRead(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", nil)
	})
	classes, toolkits, warnings := readCluster(t.Context(), client, map[string]string{"gpu": "yes"})
	if len(warnings) != 2 || classes != nil || toolkits != nil {
		t.Errorf("%v %v %q", classes, toolkits, warnings)
	}
}

package process

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// defaultEndpoint is the kubelet's own (pkg/kubelet/apis/config/v1beta1/defaults_linux.go in Kubernetes).
const defaultEndpoint = "unix:///run/containerd/containerd.sock"

// endpointFlag names the container runtime since Kubernetes 1.24 at the latest.
const endpointFlag = "container-runtime-endpoint"

// embedded are programs with a kubelet inside, and the endpoint that it gets when nobody says otherwise.
var embedded = []struct{ name, endpoint string }{
	{"k3s", "unix:///run/k3s/containerd/containerd.sock"},
	{"k3s-server", "unix:///run/k3s/containerd/containerd.sock"},
	{"k3s-agent", "unix:///run/k3s/containerd/containerd.sock"},
	{"rke2", "unix:///run/k3s/containerd/containerd.sock"},
	{"kubelite", "unix:///var/snap/microk8s/common/run/containerd.sock"},
}

// Kubelet is the process, and what is told of it.
type Kubelet struct {
	Process
	Kubelet api.Kubelet
}

// FindKubelet finds the node's one kubelet. problem says, in words for the user, why there is none, or which of several
// it could be.
func FindKubelet(all []Process, host hostfs.Host) (found Kubelet, problem string) {
	candidates := slices.Collect(func(yield func(Process) bool) {
		for _, p := range all {
			if p.isKubelet() && p.IsRoots() && p.isNodes(all) && !yield(p) {
				return
			}
		}
	})
	// rke2 and k0s run one as a process of its own.
	if real := slices.DeleteFunc(slices.Clone(candidates), Process.IsEmbedded); len(real) > 0 {
		candidates = real
	}
	switch len(candidates) {
	case 0:
		return Kubelet{}, "no kubelet runs on this node: no process is named kubelet, k3s, rke2 or kubelite"
	case 1:
		return Kubelet{candidates[0], candidates[0].describe(host)}, ""
	}
	var pids []string
	for _, p := range candidates {
		pids = append(pids, fmt.Sprintf("%d (%s)", p.PID, p.describe(host).Endpoint))
	}
	return Kubelet{}, fmt.Sprintf(
		"%s run on this node, and it cannot be determined which one is the cluster's: processes %s",
		count.Of(len(pids), "kubelet"), strings.Join(pids, ", "),
	)
}

func (p Process) isKubelet() bool {
	if slices.Contains(p.Args, "--version") {
		return false
	}
	if p.Is("kubelet") || p.Is("hyperkube") && slices.Contains(p.Args, "kubelet") {
		return true
	}
	return p.IsEmbedded()
}

// IsEmbedded reports whether a kubelet is one part of the program. `k3s kubectl` and the like are not meant.
func (p Process) IsEmbedded() bool {
	if p.Is("kubelite") || p.Called() == "k3s-server" || p.Called() == "k3s-agent" {
		return true
	}
	words := strings.Fields(strings.Join(p.Args, " "))
	return (p.Is("k3s") || p.Is("rke2")) && len(words) > 1 && (words[1] == "server" || words[1] == "agent") &&
		!slices.Contains(words, "--disable-agent")
}

// isNodes reports whether the process is the node's own, and not a nested node's, as kind and k3d run them: those have
// PID namespaces.
func (p Process) isNodes(all []Process) bool {
	for _, first := range all {
		if first.PID == 1 {
			return first.namespace == "" || p.namespace == "" || first.namespace == p.namespace
		}
	}
	return true
}

// describe finds out which runtime the kubelet uses. A flag counts more than a file.
func (p Process) describe(host hostfs.Host) api.Kubelet {
	k := api.Kubelet{PID: p.PID, Exe: p.Exe, Endpoint: defaultEndpoint, EndpointFrom: "default"}
	for _, e := range embedded {
		if p.Is(e.name) {
			k.Endpoint, k.EndpointFrom = e.endpoint, e.name
		}
	}
	root := p.Root(host)
	for _, file := range p.KubeletConfigs(root) {
		raw, err := root.Content(file)
		if err != nil {
			continue
		}
		if endpoint := TopLevel(raw, "containerRuntimeEndpoint"); endpoint != "" {
			k.Endpoint, k.EndpointFrom = endpoint, file
		}
		if driver := TopLevel(raw, "cgroupDriver"); driver != "" {
			k.CgroupDriver = driver
		}
	}
	p.describeRancher(root, &k)
	args, from := p.Args, ""
	for _, file := range p.argsFiles() {
		if raw, err := root.Content(file); err == nil {
			p.override(strings.Fields(p.expand(string(raw))), file, &k)
		}
	}
	p.override(args, from, &k)
	if !strings.Contains(k.Endpoint, ":") { // as it was written before Kubernetes 1.24
		k.Endpoint = "unix://" + k.Endpoint
	}
	return k
}

// override takes flags from a command line, or from a file that holds one.
func (p Process) override(args []string, file string, k *api.Kubelet) {
	if endpoint, ok := Flag(args, endpointFlag); ok && endpoint != "" {
		k.Endpoint, k.EndpointFrom = endpoint, "--"+endpointFlag
		if file != "" {
			k.EndpointFrom = file
		}
	}
	if driver, ok := Flag(args, "cgroup-driver"); ok {
		k.CgroupDriver = driver
	}
}

// KubeletConfigs returns the files of --config and --config-dir, in the order in which they are read.
func (p Process) KubeletConfigs(root hostfs.FS) []string {
	args := p.AllArgs(root)
	var files []string
	if file, ok := Flag(args, "config"); ok && !p.Is("k3s") && !p.Is("rke2") { // theirs is not the kubelet's
		files = append(files, p.Abs(file))
	}
	dir, ok := Flag(args, "config-dir")
	if !ok {
		return files
	}
	// Every file below that ends in .conf, in lexical order (cmd/kubelet/app/server.go in Kubernetes).
	_ = fs.WalkDir(root, hostfs.Relative(p.Abs(dir)), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".conf" {
			files = append(files, "/"+name)
		}
		return nil
	})
	return files
}

// AllArgs returns the command line, and the flags in files.
func (p Process) AllArgs(root hostfs.FS) []string {
	args := slices.Clone(p.Args)
	for _, file := range p.argsFiles() {
		raw, _ := root.Content(file)
		args = append(args, strings.Fields(p.expand(string(raw)))...)
	}
	return args
}

// argsFiles returns where snaps keep a kubelet's flags.
func (p Process) argsFiles() []string {
	if file, ok := p.Flag("kubelet-args-file"); ok { // microk8s
		return []string{p.Abs(p.expand(file))}
	}
	if strings.HasPrefix(p.Exe, "/snap/k8s/") {
		return []string{"/var/snap/k8s/common/args/kubelet"}
	}
	return nil
}

// describeRancher reads what k3s and rke2 take from a file of their own, whose keys are their flags.
func (p Process) describeRancher(root hostfs.FS, k *api.Kubelet) {
	name := ""
	switch {
	case p.Is("rke2"):
		name = "rke2"
	case p.Is("k3s"), p.Is("k3s-server"), p.Is("k3s-agent"):
		name = "k3s"
	default:
		return
	}
	file := "/etc/rancher/" + name + "/config.yaml"
	if own, ok := p.Flag("config", "c"); ok {
		file = p.Abs(own)
	}
	raw, _ := root.Content(file)
	docker := slices.Contains(p.Args, "--docker") || TopLevel(raw, "docker") == "true"
	if endpoint := TopLevel(raw, endpointFlag); endpoint != "" {
		k.Endpoint, k.EndpointFrom = endpoint, file
	} else if docker {
		k.Endpoint, k.EndpointFrom = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock", "--docker"
	}
}

// TopLevel returns the text of a key at the top of a configuration in YAML or JSON. It is not a parser of YAML: the
// keys that we ask for hold one short word, and the helper stays small.
func TopLevel(raw []byte, key string) string {
	var object map[string]any
	if json.Unmarshal(raw, &object) == nil {
		text, _ := object[key].(string)
		return text
	}
	for line := range strings.Lines(string(raw)) {
		for _, quote := range []string{"", `"`, "'"} {
			rest, ok := strings.CutPrefix(line, quote+key+quote)
			if rest = strings.TrimLeft(rest, " \t"); !ok || !strings.HasPrefix(rest, ":") {
				continue
			}
			return scalar(rest[1:])
		}
	}
	return ""
}

// scalar returns a value of YAML that stands on one line, without its quotes and the comment behind it.
func scalar(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	if quote := text[0]; quote == '"' || quote == '\'' {
		value, _, _ := strings.Cut(text[1:], string(quote))
		return value
	}
	if strings.HasPrefix(text, "#") {
		return ""
	}
	value, _, _ := strings.Cut(text, " #")
	return strings.TrimSpace(value)
}

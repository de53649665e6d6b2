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

// defaultEndpoint is the kubelet's default (pkg/kubelet/apis/config/v1beta1/defaults_linux.go in Kubernetes).
const defaultEndpoint = "unix:///run/containerd/containerd.sock"

// endpointFlag is the kubelet flag for the endpoint of the container runtime. Since Kubernetes 1.24, the flag is always
// used.
const endpointFlag = "container-runtime-endpoint"

// embedded are programs that include a kubelet, with the default endpoints of these kubelets.
var embedded = []struct{ name, endpoint string }{
	{"k3s", "unix:///run/k3s/containerd/containerd.sock"},
	{"k3s-server", "unix:///run/k3s/containerd/containerd.sock"},
	{"k3s-agent", "unix:///run/k3s/containerd/containerd.sock"},
	{"rke2", "unix:///run/k3s/containerd/containerd.sock"},
	{"kubelite", "unix:///var/snap/microk8s/common/run/containerd.sock"},
}

// Kubelet is the kubelet's process and its description.
type Kubelet struct {
	Process
	Kubelet api.Kubelet
}

// FindKubelet returns the node's kubelet. problem is a message for the user if there is no kubelet, or more than one.
func FindKubelet(all []Process, host hostfs.Host) (found Kubelet, problem string) {
	candidates := slices.Collect(func(yield func(Process) bool) {
		for _, p := range all {
			if p.isKubelet() && p.IsRoots() && p.isNodes(all) && !p.isForked(all) && !yield(p) {
				return
			}
		}
	})
	// rke2 and k0s run the kubelet as a separate process.
	if real := slices.DeleteFunc(slices.Clone(candidates), Process.IsEmbedded); len(real) > 0 {
		candidates = real
	}
	switch len(candidates) {
	case 0:
		return Kubelet{}, "no kubelet is running on this node: no process is named kubelet, k3s, rke2 or kubelite"
	case 1:
		return Kubelet{candidates[0], candidates[0].describe(host)}, ""
	}
	var pids []string
	for _, p := range candidates {
		pids = append(pids, fmt.Sprintf("%d (%s)", p.PID, p.describe(host).Endpoint))
	}
	return Kubelet{}, fmt.Sprintf(
		"%s are running on this node, and the cluster's kubelet cannot be determined: processes %s",
		count.Of(len(pids), "kubelet"), strings.Join(pids, ", "),
	)
}

// isForked reports whether the process still runs its parent's program. Between fork and exec, a child of the kubelet
// looks like a second kubelet, and on a busy node this state lasts long enough to be observed.
func (p Process) isForked(all []Process) bool {
	return slices.ContainsFunc(all, func(parent Process) bool {
		return parent.PID == p.Parent && parent.Exe == p.Exe && slices.Equal(parent.Args, p.Args)
	})
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

// IsEmbedded reports whether the program includes a kubelet. Subcommands such as `k3s kubectl` do not count.
func (p Process) IsEmbedded() bool {
	if p.Is("kubelite") || p.Called() == "k3s-server" || p.Called() == "k3s-agent" {
		return true
	}
	words := strings.Fields(strings.Join(p.Args, " "))
	return (p.Is("k3s") || p.Is("rke2")) && len(words) > 1 && (words[1] == "server" || words[1] == "agent") &&
		!slices.Contains(words, "--disable-agent")
}

// isNodes reports whether the process belongs to the node itself, and not to a nested node created by kind or k3d,
// which has its own PID namespace.
func (p Process) isNodes(all []Process) bool {
	for _, first := range all {
		if first.PID == 1 {
			return first.namespace == "" || p.namespace == "" || first.namespace == p.namespace
		}
	}
	return true
}

// describe determines which runtime the kubelet uses. Flags override files.
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
	if !strings.Contains(k.Endpoint, ":") { // the format before Kubernetes 1.24
		k.Endpoint = "unix://" + k.Endpoint
	}
	return k
}

// override applies flags from a command line, or from a file that contains one.
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

// KubeletConfigs returns the files specified by --config and --config-dir in the order in which the kubelet reads them.
func (p Process) KubeletConfigs(root hostfs.FS) []string {
	args := p.AllArgs(root)
	var files []string
	if file, ok := Flag(args, "config"); ok && !p.Is("k3s") && !p.Is("rke2") { // not the kubelet's flag for these
		files = append(files, p.Abs(file))
	}
	dir, ok := Flag(args, "config-dir")
	if !ok {
		return files
	}
	// The kubelet reads all files below the directory with the extension .conf, in lexical order
	// (cmd/kubelet/app/server.go in Kubernetes).
	_ = fs.WalkDir(root, hostfs.Relative(p.Abs(dir)), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".conf" {
			files = append(files, "/"+name)
		}
		return nil
	})
	return files
}

// AllArgs returns the flags on the command line and in files.
func (p Process) AllArgs(root hostfs.FS) []string {
	args := slices.Clone(p.Args)
	for _, file := range p.argsFiles() {
		raw, _ := root.Content(file)
		args = append(args, strings.Fields(p.expand(string(raw)))...)
	}
	return args
}

// argsFiles returns the files in which snaps store the kubelet's flags.
func (p Process) argsFiles() []string {
	if file, ok := p.Flag("kubelet-args-file"); ok { // microk8s
		return []string{p.Abs(p.expand(file))}
	}
	if strings.HasPrefix(p.Exe, "/snap/k8s/") {
		return []string{"/var/snap/k8s/common/args/kubelet"}
	}
	return nil
}

// describeRancher applies the settings in the configuration file of k3s or rke2, whose keys are the names of flags.
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

// TopLevel returns the value of a top-level key in a YAML or JSON configuration. To keep the helper small, TopLevel is
// not a YAML parser: the values of the relevant keys are single words.
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

// scalar returns a single-line YAML value without quotes and without a trailing comment.
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

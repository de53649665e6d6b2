package node

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

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

// kubelet is the process, and what runtime.go tells of it.
type kubelet struct {
	program
	Kubelet
}

// findKubelet finds the node's one kubelet. problem says, in words for the user, why there is none, or which of several
// it could be.
func findKubelet(all []program, host Host) (found kubelet, problem string) {
	candidates := slices.Collect(func(yield func(program) bool) {
		for _, p := range all {
			if p.isKubelet() && p.isRoots() && p.isNodes(all) && !yield(p) {
				return
			}
		}
	})
	// rke2 and k0s run one as a process of its own.
	if real := slices.DeleteFunc(slices.Clone(candidates), program.isEmbedded); len(real) > 0 {
		candidates = real
	}
	switch len(candidates) {
	case 0:
		return kubelet{}, "no kubelet runs on this node: no process is named kubelet, k3s, rke2 or kubelite"
	case 1:
		return kubelet{candidates[0], candidates[0].describe(host)}, ""
	}
	var pids []string
	for _, p := range candidates {
		pids = append(pids, fmt.Sprintf("%d (%s)", p.pid, p.describe(host).Endpoint))
	}
	return kubelet{}, fmt.Sprintf(
		"%s run on this node, and it cannot be determined which one is the cluster's: processes %s",
		count.Of(len(pids), "kubelet"), strings.Join(pids, ", "),
	)
}

func (p program) isKubelet() bool {
	if slices.Contains(p.args, "--version") {
		return false
	}
	if p.is("kubelet") || p.is("hyperkube") && slices.Contains(p.args, "kubelet") {
		return true
	}
	return p.isEmbedded()
}

// isEmbedded reports whether a kubelet is one part of the program. `k3s kubectl` and the like are not meant.
func (p program) isEmbedded() bool {
	if p.is("kubelite") || p.called() == "k3s-server" || p.called() == "k3s-agent" {
		return true
	}
	words := strings.Fields(strings.Join(p.args, " "))
	return (p.is("k3s") || p.is("rke2")) && len(words) > 1 && (words[1] == "server" || words[1] == "agent") &&
		!slices.Contains(words, "--disable-agent")
}

// isNodes reports whether the process is the node's own, and not a nested node's, as kind and k3d run them: those have
// PID namespaces.
func (p program) isNodes(all []program) bool {
	for _, first := range all {
		if first.pid == 1 {
			return first.namespace == "" || p.namespace == "" || first.namespace == p.namespace
		}
	}
	return true
}

// describe finds out which runtime the kubelet uses. A flag counts more than a file.
func (p program) describe(host Host) Kubelet {
	k := Kubelet{PID: p.pid, Exe: p.exe, Endpoint: defaultEndpoint, EndpointFrom: "default"}
	for _, e := range embedded {
		if p.is(e.name) {
			k.Endpoint, k.EndpointFrom = e.endpoint, e.name
		}
	}
	root := p.root(host)
	for _, file := range p.kubeletConfigs(root) {
		raw, err := root.readFile(file)
		if err != nil {
			continue
		}
		if endpoint := topLevel(raw, "containerRuntimeEndpoint"); endpoint != "" {
			k.Endpoint, k.EndpointFrom = endpoint, file
		}
		if driver := topLevel(raw, "cgroupDriver"); driver != "" {
			k.CgroupDriver = driver
		}
	}
	p.describeRancher(root, &k)
	args, from := p.args, ""
	for _, file := range p.argsFiles() {
		if raw, err := root.readFile(file); err == nil {
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
func (p program) override(args []string, file string, k *Kubelet) {
	if endpoint, ok := flagOf(args, endpointFlag); ok && endpoint != "" {
		k.Endpoint, k.EndpointFrom = endpoint, "--"+endpointFlag
		if file != "" {
			k.EndpointFrom = file
		}
	}
	if driver, ok := flagOf(args, "cgroup-driver"); ok {
		k.CgroupDriver = driver
	}
}

// kubeletConfigs returns the files of --config and --config-dir, in the order in which they are read.
func (p program) kubeletConfigs(root rootFS) []string {
	args := p.allArgs(root)
	var files []string
	if file, ok := flagOf(args, "config"); ok && !p.is("k3s") && !p.is("rke2") { // theirs is not the kubelet's
		files = append(files, p.abs(file))
	}
	dir, ok := flagOf(args, "config-dir")
	if !ok {
		return files
	}
	// Every file below that ends in .conf, in lexical order (cmd/kubelet/app/server.go in Kubernetes).
	_ = fs.WalkDir(root, relative(p.abs(dir)), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".conf" {
			files = append(files, "/"+name)
		}
		return nil
	})
	return files
}

// allArgs returns the command line, and the flags in files.
func (p program) allArgs(root rootFS) []string {
	args := slices.Clone(p.args)
	for _, file := range p.argsFiles() {
		raw, _ := root.readFile(file)
		args = append(args, strings.Fields(p.expand(string(raw)))...)
	}
	return args
}

// argsFiles returns where snaps keep a kubelet's flags.
func (p program) argsFiles() []string {
	if file, ok := p.flag("kubelet-args-file"); ok { // microk8s
		return []string{p.abs(p.expand(file))}
	}
	if strings.HasPrefix(p.exe, "/snap/k8s/") {
		return []string{"/var/snap/k8s/common/args/kubelet"}
	}
	return nil
}

// describeRancher reads what k3s and rke2 take from a file of their own, whose keys are their flags.
func (p program) describeRancher(root rootFS, k *Kubelet) {
	name := ""
	switch {
	case p.is("rke2"):
		name = "rke2"
	case p.is("k3s"), p.is("k3s-server"), p.is("k3s-agent"):
		name = "k3s"
	default:
		return
	}
	file := "/etc/rancher/" + name + "/config.yaml"
	if own, ok := p.flag("config", "c"); ok {
		file = p.abs(own)
	}
	raw, _ := root.readFile(file)
	docker := slices.Contains(p.args, "--docker") || topLevel(raw, "docker") == "true"
	if endpoint := topLevel(raw, endpointFlag); endpoint != "" {
		k.Endpoint, k.EndpointFrom = endpoint, file
	} else if docker {
		k.Endpoint, k.EndpointFrom = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock", "--docker"
	}
}

// topLevel returns the text of a key at the top of a configuration in YAML or JSON. It is not a parser of YAML: the
// keys that we ask for hold one short word, and the helper stays small.
func topLevel(raw []byte, key string) string {
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

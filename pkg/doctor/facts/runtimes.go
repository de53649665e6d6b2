package facts

import (
	"regexp"
	"slices"
	"strings"

	nodev1 "k8s.io/api/node/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// viewRuntimes sets the runtime view of each node. It is the same view that `runtime show` would print on the node.
func (f *Facts) viewRuntimes() {
	for _, n := range f.Nodes {
		if n.Host == nil {
			continue
		}
		var classes []runtimeview.RuntimeClass
		for _, c := range f.RuntimeClasses {
			classes = append(classes, runtimeview.RuntimeClass{Name: c.Name, Handler: c.Handler})
		}
		var toolkits []runtimeview.Toolkit
		for _, set := range f.DaemonSets {
			toolkits = append(toolkits, runtimeview.ToolkitsOf(set, n.Labels)...)
		}
		v := runtimeview.New(n.Name, n.Host.Runtime, classes, toolkits)
		n.View = &v
	}
}

// startPattern matches an error message from a container runtime. The first group is the name in the message.
type startPattern struct {
	id string
	re *regexp.Regexp
}

// handlerName matches the name of a handler or RuntimeClass. The pattern is strict, because these names are used in
// commands and any client may be able to create events.
const handlerName = `([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)`

// These patterns match messages in pod events. Unless noted otherwise, the messages are from containerd 1.7.28 and
// 2.3.4. The text before the matched part differs between releases.
var startPatterns = []startPattern{
	{"rt.handler-missing", regexp.MustCompile(`no runtime for "` + handlerName + `" is configured`)},
	// dockershim
	{"rt.handler-missing", regexp.MustCompile(`RuntimeHandler "` + handlerName + `" not supported`)},
	// CRI-O
	{"rt.handler-missing", regexp.MustCompile(`failed to find runtime handler ` + handlerName + ` from runtime list`)},
	// the shim
	{"rt.runtime-type", regexp.MustCompile(`runtime "([^"]+)" binary not installed`)},
	// BinaryName
	{"rt.binary-missing", regexp.MustCompile(`unable to retrieve OCI runtime error.*fork/exec (/[^\s:]+): `)},
	{
		"rt.binary-missing",
		regexp.MustCompile(`unable to retrieve OCI runtime error.*exec: "([^"]+)": executable file not found`),
	},
	{"rt.cgroup-driver", regexp.MustCompile(`expected cgroupsPath to be of format "(slice:prefix:name)"`)}, // runc
	{"cdi.unresolvable", regexp.MustCompile(`unresolvable CDI devices? ([^\n]+)`)},
	{"cdi.unresolvable", regexp.MustCompile(`failed to stat CDI host device "?([^":\s]+)`)},
	// the kubelet
	{"rc.handler-mismatch", regexp.MustCompile(`runtimeclasses?\.node\.k8s\.io "` + handlerName + `" not found`)},
	// the API server
	{"rc.handler-mismatch", regexp.MustCompile(`RuntimeClass "` + handlerName + `" not found`)},
	{"docker.no-gpu-driver", regexp.MustCompile(`could not select device driver "([^"]*)" with capabilities: \[\[gpu`)},
	{"rt.shim-skew", regexp.MustCompile(`failed to create TTRPC connection: (dial unix \S+)`)},
	{"rt.shim-skew", regexp.MustCompile(`(unsupported shim version[^\n]*)`)},
	{"sec.selinux", regexp.MustCompile(`(?i)nvml[^\n]*: (insufficient permissions)`)},
}

// Recognize returns the ID of the finding about a runtime's error message and the name in the message. The ID is empty
// if the message is unknown.
func Recognize(text string) (id, name string) {
	for _, p := range startPatterns {
		if m := p.re.FindStringSubmatch(text); m != nil {
			return p.id, strings.TrimSpace(words.Clip(m[1]))
		}
	}
	return "", ""
}

// NVIDIAClass returns the first RuntimeClass for NVIDIA's runtime, or nil. It prefers the general class to classes for
// a single mode.
func (f *Facts) NVIDIAClass() *nodev1.RuntimeClass {
	for i := range f.RuntimeClasses {
		c := &f.RuntimeClasses[i]
		if strings.HasPrefix(c.Handler, "nvidia") && !strings.Contains(c.Handler, "legacy") &&
			!strings.Contains(c.Handler, "cdi") {
			return c
		}
	}
	return nil
}

// RuntimeClass returns the RuntimeClass with the given name, or nil if it does not exist.
func (f *Facts) RuntimeClass(name string) *nodev1.RuntimeClass {
	n := slices.IndexFunc(f.RuntimeClasses, func(c nodev1.RuntimeClass) bool { return c.Name == name })
	if n < 0 {
		return nil
	}
	return &f.RuntimeClasses[n]
}

// AcceptsEnv is the toolkit setting that lets unprivileged containers get GPUs through NVIDIA_VISIBLE_DEVICES.
const AcceptsEnv = "accept-nvidia-visible-devices-envvar-when-unprivileged"

// variableOf returns the variable with which the toolkit's container overrides a top-level setting.
func variableOf(setting string) string { return strings.ToUpper(strings.ReplaceAll(setting, "-", "_")) }

// toolkitRefuses reports whether a top-level toolkit setting is false on the node. It also returns the variable of the
// toolkit's container that sets it, or "".
func (n *Node) toolkitRefuses(setting string) (refused bool, variable string) {
	for _, toolkit := range Current(n, Toolkit) {
		for i := range toolkit.Spec.Containers {
			if values := EnvOf(toolkit.Spec.Containers[i].Env, variableOf(setting)); len(values) > 0 {
				return values[0] == "false", variableOf(setting)
			}
		}
	}
	return n.ToolkitSetting(setting) == "false", ""
}

// ToolkitSetting returns the raw value of a top-level setting in the toolkit's config.toml on the node. It returns ""
// if the setting is missing or commented out, or if the file was not read.
func (n *Node) ToolkitSetting(key string) string {
	if n.Host == nil {
		return ""
	}
	text := n.Host.Probe.ToolkitConfig
	if i := n.Host.Runtime.Instance; text == "" && i != nil {
		for _, file := range i.Files {
			if strings.HasSuffix(file.Path, "/nvidia-container-runtime/config.toml") {
				text = string(file.Data)
			}
		}
	}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

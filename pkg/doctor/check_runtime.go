package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// runtimeChecks are about the node's container runtime, from the runtime class of a pod to the program that starts it.
// What is wrong with a containerd's configuration is found by pkg/runtimeview, whose findings `runtime show` prints,
// too; the checks say for whom it matters.
func runtimeChecks() []Check {
	return inSentences(slices.Concat(handlerChecks(), configurationChecks(), startChecks(), toolkitChecks(),
		cdiChecks(), nodeRuntimeChecks()))
}

// What the catalog asks for and no snapshot has the evidence of:
//   - rt.restart-loop does not see containers that stay in the state Created: that is in the runtime's own list of
//     containers;
//   - a dead man's record on a node without a run in the cluster is told by `leftovers --nodes`: the helper does not
//     read /var/lib/gpu-fault.

// inSentences lets the fixes of checks be whole sentences, however they are put together.
func inSentences(checks []Check) []Check {
	for i := range checks {
		run := checks[i].Run
		checks[i].Run = func(f *Facts, r *Result) {
			run(f, r)
			for j := range r.findings {
				r.findings[j].Fix.Text = sentence(r.findings[j].Fix.Text)
			}
		}
	}
	return checks
}

// sentence begins with a capital letter and ends with a full stop, but for a path or a setting at its end, which would
// be copied with it.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	last := text[strings.LastIndexByte(text, ' ')+1:]
	if !strings.ContainsAny(last, "=/") && !strings.HasSuffix(text, ".") {
		text += "."
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// noPods returns what follows where pods do not start, or start without their GPUs.
func noPods(more ...string) []string {
	return gpuLost(append(more,
		"rt.sandbox-failed", "wl.pod-failing", "dp.not-running", "dp.capacity-zero", "dp.nvml-missing", "dp.unhealthy",
		"dp.none", "op.*",
		"gfd.labels", "obs.*", "dra.*", "mig.*", "share.*",
	)...)
}

// noGPUs returns what follows where pods start, and have no GPU.
func noGPUs(more ...string) []string {
	return noPods(append(more, "wl.cpu-mode", "wl.cuda-error", "wl.cuda-vs-driver")...)
}

// noRuntime returns what follows where the kubelet has no runtime at all.
func noRuntime(more ...string) []string {
	return noPods(append(more, "rt.not-ready", "rt.handler-missing", "rt.restart-loop", "node.not-ready",
		"node.condition", "sched.node-state", "dp.*")...)
}

// viewRuntimes makes of what the helper read on nodes what `runtime show` would say there.
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

// runtimeFindings returns those of an ID that the runtime view of a node has.
func (n *Node) runtimeFindings(id string) []runtimeview.Finding {
	if n.View == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.View.Findings), func(f runtimeview.Finding) bool { return f.ID != id })
}

// instance returns the runtime that the node's kubelet uses; nil when that is not known.
func (n *Node) instance() *runtimeview.Instance {
	if n.View == nil {
		return nil
	}
	return n.View.Runtime
}

// eachRuntime calls do for every node whose runtime was read, and records the GPU nodes that were not as unknown.
func (r *Result) eachRuntime(f *Facts, do func(n *Node)) {
	for _, n := range f.Nodes {
		switch {
		case n.View != nil && n.View.Runtime != nil:
			do(n)
		case !slices.Contains(f.GPUNodes, n):
		case n.View != nil:
			r.Unknown(n.Object(), "the container runtime cannot be told: %s",
				cmp.Or(n.View.Problem, "no kubelet was found"))
		default:
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
		}
	}
}

// quoted returns a view's quotations as evidence.
func quoted(n *Node, quotes []runtimeview.Quote) []Evidence {
	var all []Evidence
	for _, q := range quotes[:min(len(quotes), 5)] {
		all = append(all, clipped(Evidence{Source: "nodes/" + n.Name + ": " + q.Source, Text: q.Text}))
	}
	return all
}

// unitOf returns the systemd unit of a node's runtime: the one that was found there, and not the one of the textbook.
func unitOf(n *Node) string {
	if i := n.instance(); i != nil && i.Unit != "" {
		return i.Unit
	}
	if n.IsCRIO() {
		return "crio.service"
	}
	place, _ := n.Distribution.runtime()
	return cmp.Or(place.unit, "containerd.service")
}

// restartUnit returns the command that restarts the runtime of a node.
func restartUnit(n *Node) string { return onHost(n.Name, "sudo systemctl restart %s", unitOf(n)) }

// lookAt returns the command that reads the node, where that was not done.
func lookAt(n *Node) string { return command("kubectl gpu-fault doctor --node %s", n.Name) }

// runtimePlace is where a distribution keeps its containerd.
type runtimePlace struct{ config, socket, unit string }

// runtime returns the containerd of a distribution whose kubelet does not use the one of /etc/containerd; Canonical's
// may lie elsewhere.
func (d Distribution) runtime() (runtimePlace, bool) {
	switch d {
	case K3s:
		return runtimePlace{
			"/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock",
			"k3s-agent.service",
		}, true
	case RKE2:
		return runtimePlace{
			"/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock",
			"rke2-agent.service",
		}, true
	case MicroK8s:
		return runtimePlace{
			"/var/snap/microk8s/current/args/containerd-template.toml", "/var/snap/microk8s/common/run/containerd.sock",
			"snap.microk8s.daemon-containerd.service",
		}, true
	case K0s:
		return runtimePlace{"/etc/k0s/containerd.d/nvidia.toml", "/run/k0s/containerd.sock", "k0sworker.service"}, true
	}
	return runtimePlace{}, false
}

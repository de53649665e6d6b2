// Package runtime checks the container runtime on nodes and its configuration.
package runtime

import (
	"cmp"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// Checks returns the checks for the node's container runtime, from a pod's RuntimeClass to the program that starts the
// pod. Problems in containerd's configuration are found by the package pkg/runtimeview, which `runtime show` also uses;
// the checks add the affected pods.
func Checks() []engine.Check {
	return engine.InSentences(slices.Concat(handlerChecks(), configurationChecks(), startChecks(), toolkitChecks(),
		cdiChecks(), nodeRuntimeChecks()))
}

// noPods returns the IDs of the findings to expect if pods do not start, or start without their GPUs.
func noPods(more ...string) []string {
	return facts.GPULost(append(more,
		"rt.sandbox-failed", "wl.pod-failing", "dp.not-running", "dp.capacity-zero", "dp.nvml-missing", "dp.unhealthy",
		"dp.none", "op.*",
		"gfd.labels", "obs.*", "dra.*", "mig.*", "share.*",
	)...)
}

// noGPUs returns the IDs of the findings to expect if pods start without their GPUs.
func noGPUs(more ...string) []string {
	return noPods(append(more, "wl.cpu-mode", "wl.cuda-error", "wl.cuda-vs-driver")...)
}

// noRuntime returns the IDs of the findings to expect if the kubelet has no container runtime.
func noRuntime(more ...string) []string {
	return noPods(append(more, "rt.not-ready", "rt.handler-missing", "rt.restart-loop", "node.not-ready",
		"node.condition", "sched.node-state", "dp.*")...)
}

// runtimeFindings returns the findings with the given ID in a node's runtime view.
func runtimeFindings(n *facts.Node, id string) []runtimeview.Finding {
	if n.View == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.View.Findings), func(f runtimeview.Finding) bool {
		return f.ID != id || f.Latent && readAll(n)
	})
}

// readAll reports whether the running containerd started well after the last change to any of its files. Its
// configuration in memory then results from these files, even if they appear to result in a different configuration.
func readAll(n *facts.Node) bool {
	started, i := runtimeStarted(n), instance(n)
	return !started.IsZero() && len(i.Files) > 0 && !slices.ContainsFunc(i.Files, func(file runtimeview.File) bool {
		return file.Modified.IsZero() || file.Modified.Add(loadMargin).After(started)
	})
}

// instance returns the runtime that the node's kubelet uses, or nil if unknown.
func instance(n *facts.Node) *runtimeview.Instance {
	if n.View == nil {
		return nil
	}
	return n.View.Runtime
}

// eachRuntime calls the function do for every node whose runtime was read, and records the other GPU nodes as unknown.
func eachRuntime(r *engine.Result, f *facts.Facts, do func(n *facts.Node)) {
	for _, n := range f.Nodes {
		switch {
		case n.View != nil && n.View.Runtime != nil:
			do(n)
		case !n.IsGPUNode:
		case n.View != nil:
			r.Unknown(n.Object(), "the container runtime is unknown: %s",
				cmp.Or(n.View.Problem, "no kubelet was found"))
		default:
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
		}
	}
}

// quoted converts the quotations in a runtime view to evidence.
func quoted(n *facts.Node, quotes []runtimeview.Quote) []finding.Evidence {
	var all []finding.Evidence
	for _, q := range quotes[:min(len(quotes), 5)] {
		all = append(all, finding.Clipped(finding.Evidence{Source: "nodes/" + n.Name + ": " + q.Source, Text: q.Text}))
	}
	return all
}

// unitOf returns the systemd unit of a node's runtime: the unit found on the node, or else the distribution's default.
func unitOf(n *facts.Node) string {
	if i := instance(n); i != nil && i.Unit != "" {
		return i.Unit
	}
	return n.RuntimeUnit() + ".service"
}

// restartUnit returns the command that restarts the node's runtime.
func restartUnit(n *facts.Node) string {
	return shell.OnHost(n.Name, "sudo systemctl restart %s", unitOf(n))
}

// lookAt returns the doctor command that collects data from the node.
func lookAt(n *facts.Node) string { return shell.Command("kubectl gpu-fault doctor --node %s", n.Name) }

// runtimePlace contains the paths of a distribution's containerd.
type runtimePlace struct{ config, socket string }

// runtime returns the location of containerd's files in a distribution that does not use /etc/containerd. It returns
// false for Canonical Kubernetes, whose paths can differ.
func runtime(d facts.Distribution) (runtimePlace, bool) {
	switch d {
	case facts.K3s:
		return runtimePlace{
			"/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock",
		}, true
	case facts.RKE2:
		return runtimePlace{
			"/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock",
		}, true
	case facts.MicroK8s:
		return runtimePlace{
			"/var/snap/microk8s/current/args/containerd-template.toml", "/var/snap/microk8s/common/run/containerd.sock",
		}, true
	case facts.K0s:
		return runtimePlace{"/etc/k0s/containerd.d/nvidia.toml", "/run/k0s/containerd.sock"}, true
	}
	return runtimePlace{}, false
}

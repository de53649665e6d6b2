// Package cluster checks node conditions and the state of nodes.
package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Checks returns the checks for the node state.
func Checks() []engine.Check {
	return []engine.Check{
		{
			ID: "node.not-ready", Symptom: engine.Precise, Layer: finding.LayerCluster,
			Title: "a GPU node is not Ready, or its kubelet has stopped reporting or starting pods",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "Node .status.conditions: Ready, and the conditions that report problems; the journal of the " +
				"kubelet's unit; failing pods in the host's network; .status.startTime of pods",
			Why: "Pods do not start on a node that is not Ready. The condition's message is the first hint; other checks find what stopped the kubelet or the runtime. A new node is Info for 5 minutes, then a warning for up to 15 minutes unless a pod is waiting for it. A node that an autoscaler or the cloud provider is removing is Info.",
			Explains: []string{
				"sched.none-advertised", "sched.all-in-use", "sched.fragmented", "sched.insufficient-gpu",
				"sched.insufficient-other",
				"sched.nodes-unavailable", "sched.unschedulable", "sched.node-state", "node.pressure", "wl.pod-failing",
				"wl.probe-failing",
				"wl.volume", "wl.evicted", "dp.capacity-zero", "dp.not-running", "dp.unhealthy", "op.*", "alloc.*",
				"rt.sandbox-failed", "obs.*", "gfd.*",
				"nfd.*", "dra.*", "mig.manager-failed", "img.pull-network", "net.dns",
			},
			ExplainsAs: map[string][]string{ofNetwork: facts.GPULost("sched.nodes-unavailable", "sched.unschedulable",
				"sched.node-state", "wl.pod-failing", "dp.*", "op.*", "alloc.*", "rt.sandbox-failed", "obs.*", "gfd.*",
				"nfd.*", "dra.*")},
			Doc:     "https://kubernetes.io/docs/reference/node/node-status/#condition",
			Sources: []string{"METR/hawk#273", "kubernetes#100992"},
			Run:     checkNotReady,
		},
		{
			ID: "node.condition", Layer: finding.LayerCluster,
			Title: "an agent on a GPU node reports a problem as a node condition",
			Needs: []engine.Need{engine.NeedAPI},
			Reads: "Node .status.conditions set by node-problem-detector, NVSentinel, the EKS node monitoring agent, AKS, and others",
			Why: "Conditions such as GPUXid, SysLogsXIDError, GPUMissing, or KernelDeadlock that are True, and conditions such as AcceleratedHardwareReady that are False. " +
				"The catalog determines the severity of an XID in the message: an application error is Info, the loss of a GPU is an error. Conditions with unknown meaning are ignored.",
			Explains: []string{"wl.cuda-error", "dp.unhealthy", "alloc.unexpected-admission", "sched.node-state"},
			Sources:  []string{"NVSentinel", "node-problem-detector", "eks-node-monitoring-agent"},
			Run:      checkConditions,
		},
		{
			ID: "node.pressure", Layer: finding.LayerCluster,
			Title:    "a GPU node is running out of disk space, memory, or process IDs",
			Needs:    []engine.Need{engine.NeedAPI},
			Reads:    "Node .status.conditions DiskPressure, MemoryPressure, PIDPressure; .status.images; events",
			Why:      "The kubelet evicts pods and does not admit new ones. GPU images are large, often 10 to 20 GB.",
			Explains: []string{"sched.nodes-unavailable", "wl.evicted", "img.pull-network"},
			ExplainsAs: map[string][]string{
				finding.FillsDisk: {"sched.nodes-unavailable", "img.pull-network"},
			},
			Doc: "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/",
			Run: checkPressure,
		},
		{
			ID: "sched.node-state", Layer: finding.LayerCluster,
			Title:    "a GPU node is cordoned, or the API server does not support its kubelet version",
			Needs:    []engine.Need{engine.NeedAPI},
			Reads:    "Node .spec.unschedulable, .spec.taints, annotations, .status.nodeInfo.kubeletVersion; the version of the API server",
			Why:      "Nodes are usually cordoned on purpose, so this is Info, or an error if GPU pods are waiting because all nodes that they could use are cordoned. A kubelet can be up to three minor versions older than the API server, but not newer.",
			Explains: []string{"sched.nodes-unavailable"},
			Doc:      "https://kubernetes.io/docs/concepts/nodes/node/#manual-node-administration",
			Run:      checkNodeState,
		},
	}
}

// joinTime is the time that a new node may need to start its network, driver, and plugins.
const (
	joinTime     = 5 * time.Minute
	slowJoinTime = 15 * time.Minute // a warning until then, unless a pod is waiting for the node
)

// departs reports whether the node is being removed or shut down. It also returns the taint or message that shows this.
func departs(n *facts.Node) (string, bool) {
	for _, t := range n.Spec.Taints {
		switch {
		case t.Key == "karpenter.sh/disrupted", t.Key == "karpenter.sh/disruption",
			t.Key == "ToBeDeletedByClusterAutoscaler",
			t.Key == "node.cloudprovider.kubernetes.io/shutdown", t.Key == "node.kubernetes.io/out-of-service",
			t.Key == "cloud.google.com/impending-node-termination",
			strings.HasPrefix(t.Key, "aws-node-termination-handler/"):
			return "taint " + facts.TaintText(&t), true
		}
	}
	if message := n.Ready().Message; strings.Contains(message, "node is shutting down") {
		return message, true
	}
	return "", false
}

// ofNetwork is the kind (Finding.As) of findings about nodes without a network. Image pulls do not depend on the
// network plugin, but the network plugin depends on them.
const ofNetwork = "network"

func checkNotReady(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	awaited := scheduler.Awaited(f)
	for _, n := range f.GPUNodes {
		ready := n.Ready()
		if n.DeletionTimestamp != nil {
			continue
		}
		if ready.Type == "" {
			r.Unknown(n.Object(), "the node has no Ready condition")
			continue
		}
		source, text := " .status.conditions[Ready]", strings.TrimSpace(ready.Reason+": "+ready.Message)
		if ready.Status == corev1.ConditionTrue {
			source = ", status of its pods"
			if text, ready.LastTransitionTime.Time = stuck(f, n); text == "" {
				r.Pass(n.Object())
				continue
			}
		}
		issue := finding.Finding{
			Object: n.Object(), Nodes: []string{n.Name}, Began: ready.LastTransitionTime.Time,
			Evidence: []finding.Evidence{{
				Source: n.Object().String() + source, Time: ready.LastTransitionTime.Time,
				Text: words.Clip(text),
			}},
		}
		issue.Title, issue.Fix = notReady(n, ready)
		if n.AwaitsNetwork() {
			issue.As = ofNetwork
			for _, pod := range n.Pods { // only pods in the host's network start on such a node
				if t := f.Troubles(pod); pod.Spec.HostNetwork && len(t) > 0 && len(issue.Evidence) < words.Few {
					issue.Evidence = append(issue.Evidence, finding.Evidence{
						Source: facts.PodObject(pod).String() + ", container " + t[0].Container, Text: t[0].Text,
					})
					issue.Fix.Commands = append(issue.Fix.Commands,
						shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace))
				}
			}
		}
		describeFatal(n, &issue)
		for _, c := range n.Status.Conditions {
			if problem(c) && !aboutGPU(c) && len(issue.Evidence) < words.Few {
				issue.Evidence = append(issue.Evidence, facts.QuoteCondition(n, c))
			}
		}
		age := f.Now.Sub(n.CreationTimestamp.Time)
		young := !n.CreationTimestamp.IsZero() && ready.Status == corev1.ConditionFalse
		if taint, leaves := departs(n); leaves {
			issue.Severity, issue.Title = finding.Info, "the node is being removed and is no longer Ready"
			issue.Fix = finding.Fix{
				Text: "No action is needed: an autoscaler or the cloud provider is removing the node, and its pods " +
					"will be recreated elsewhere.",
			}
			issue.Evidence = append(issue.Evidence, finding.Evidence{Source: n.Object().String(), Text: taint})
		} else if young && age < joinTime {
			issue.Severity = finding.Info
		} else if young && age < slowJoinTime && !awaited[n.Name] {
			issue.Severity = finding.Warning
		}
		r.Add(issue)
	}
}

// notReady explains the message of a Ready condition and returns a fix for the node.
func notReady(n *facts.Node, ready corev1.NodeCondition) (string, finding.Fix) {
	text := ready.Message
	runtime := n.RuntimeUnit()
	logs := []string{
		shell.Command("kubectl describe node %s", n.Name),
		shell.OnHost(n.Name, "sudo systemctl status %s %s", kubeletUnit(n), runtime),
		shell.OnHost(n.Name, "sudo journalctl -u %s -n 100 --no-pager", runtime),
	}
	switch {
	case ready.Status == corev1.ConditionTrue:
		return "the node is Ready, but its kubelet starts no pods", finding.Fix{}
	case words.ContainsAny(text, []string{
		"container runtime is down", "runtime.v1.RuntimeService", "RuntimeReady=false", "container runtime not ready",
		"container runtime status check",
	}) &&
		!strings.Contains(text, "NetworkReady=false"):
		return "the node is not Ready: its kubelet gets no response from the container runtime",
			finding.Fix{
				Text: "Find out why the container runtime is not responding; its journal contains any " +
					"configuration errors.",
				Commands: logs,
			}
	case strings.Contains(text, "PLEG is not healthy"):
		return "the node is not Ready: the container runtime responds too slowly (PLEG)",
			finding.Fix{
				Text:     "Look for hung containers, a full or slow disk, and processes in state D on the node. A hung GPU driver also causes this.",
				Commands: logs,
			}
	case ready.Status == corev1.ConditionUnknown, strings.Contains(text, "stopped posting"),
		strings.Contains(text, "never posted"):
		return "the node is not Ready: its kubelet has stopped reporting",
			finding.Fix{Text: "Check that the machine is up and can reach the API server, then check its kubelet.",
				Commands: []string{
					shell.Command("kubectl describe node %s", n.Name),
					shell.OnHost(n.Name, "sudo systemctl status %s", kubeletUnit(n)),
					shell.OnHost(n.Name, "sudo journalctl -u %s -n 100 --no-pager", kubeletUnit(n)),
				}}
	case n.AwaitsNetwork():
		return "the node is not Ready: its network (CNI) is not set up",
			finding.Fix{Text: "Check the network plugin's pod on this node: the plugin writes the file in /etc/cni/net.d that the runtime is waiting for.",
				Commands: []string{
					shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
				}}
	}
	return "the node is not Ready", finding.Fix{
		Text: "See the condition's message, and the kubelet's journal on the node.", Commands: logs,
	}
}

// kubeletUnit returns the name of the kubelet's systemd unit in the node's distribution.
func kubeletUnit(n *facts.Node) string {
	if n.Distribution == facts.CanonicalK8s {
		return "snap.k8s.kubelet"
	}
	return cmp.Or(n.EmbeddedUnit(), "kubelet")
}

// isKubelets reports whether the condition is one of Kubernetes' own conditions, which other checks cover.
func isKubelets(t corev1.NodeConditionType) bool {
	return slices.Contains([]corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeNetworkUnavailable,
	}, t)
}

// problem reports whether a condition indicates a problem. It returns false for conditions whose healthy status is
// unknown.
func problem(c corev1.NodeCondition) bool {
	kind := string(c.Type)
	if isKubelets(c.Type) {
		return false
	}
	switch c.Status {
	case corev1.ConditionFalse: // set by the EKS agent, and by other agents for types such as Ready or Healthy
		good := (strings.HasSuffix(kind, "Ready") || strings.HasSuffix(kind, "Healthy")) &&
			!strings.HasSuffix(kind, "Unhealthy")
		return good && (aboutGPU(c) || slices.Contains([]string{
			"AcceleratedHardwareReady", "KernelReady", "StorageReady", "NetworkingReady", "ContainerRuntimeReady",
		}, kind))
	case corev1.ConditionTrue:
		if strings.HasSuffix(c.Reason, "IsNotHealthy") { // set by NVSentinel
			return true
		}
		return !strings.HasSuffix(kind, "Ready") && !strings.HasSuffix(c.Reason, "IsHealthy") &&
			words.ContainsAny(strings.ToLower(kind), []string{
				"xid", "deadlock", "readonly", "unhealthy", "problem", "error", "fail", "fault", "missing", "lost",
				"fallen", "degraded", "inactive",
				"frequent", "unregister", "corrupt", "overheat", "throttl", "hang", "hung",
			})
	}
	return false
}

// aboutGPU reports whether a condition is about a GPU or its links.
func aboutGPU(c corev1.NodeCondition) bool {
	return words.ContainsAny(strings.ToLower(string(c.Type)+" "+c.Reason),
		[]string{"gpu", "xid", "nvidia", "nvlink", "nvswitch", "acceleratedhardware", "accelerator", "dcgm", "cuda"})
}

func checkConditions(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	for _, n := range f.GPUNodes {
		notReady := n.Ready().Status != corev1.ConditionTrue
		for _, c := range n.Status.Conditions {
			if !problem(c) || notReady && !aboutGPU(c) { // node.not-ready quotes the other conditions
				continue
			}
			if own, ours := n.GPUs().Rests(c); ours {
				r.Add(own.Finding(n, c))
				continue
			}
			severity, meaning := conditionMeaning(c)
			_, ofRun := n.GPUs().RestsOnOpen(c)
			r.Add(finding.Finding{
				Title:  fmt.Sprintf("an agent on the node reports the condition %s%s", c.Type, meaning),
				Object: n.Object(), Severity: severity, Confidence: finding.Likely,
				Evidence: []finding.Evidence{facts.QuoteCondition(n, c)},
				Began:    c.LastTransitionTime.Time, OfGPU: aboutGPU(c), OfRun: ofRun,
				Fix: finding.Fix{
					Text: "Follow the message. The condition stays until its agent clears it (node-problem-detector does this only on restart).",
					Commands: []string{
						shell.Command("kubectl gpu-fault doctor --node %s # reads the kernel log and nvidia-smi there",
							n.Name),
						shell.Command("kubectl describe node %s", n.Name),
					},
				},
			})
		}
	}
}

// conditionMeaning returns the severity of a condition and a suffix for the title. The severity is that of the worst
// XID in the condition, or Warning.
func conditionMeaning(c corev1.NodeCondition) (finding.Severity, string) {
	if !aboutGPU(c) {
		return finding.Warning, ""
	}
	severity := finding.Severity("")
	var worst int
	for _, code := range facts.XIDsIn(c.Reason + " " + c.Message) {
		s := xidSeverity(code)
		if s != "" && (severity == "" || finding.Rank(s) < finding.Rank(severity)) {
			severity, worst = s, code
		}
	}
	if severity == "" {
		return finding.Warning, ""
	}
	return severity, fmt.Sprintf(" for XID %d", worst)
}

// minorsApart returns the number of minor versions by which a kubelet is older than the API server. It returns false if
// a version is invalid.
func minorsApart(server, kubelet string) (int, bool) {
	minor := func(version string) (int, bool) {
		parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
		if len(parts) < 2 || parts[0] != "1" {
			return 0, false
		}
		n, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
		return n, err == nil
	}
	s, okServer := minor(server)
	k, okKubelet := minor(kubelet)
	return s - k, okServer && okKubelet
}

// waitFor returns the pods that are pending because this node, possibly among others, is unavailable.
func waitFor(f *facts.Facts, n *facts.Node) []scheduler.PendingPod {
	return slices.DeleteFunc(slices.Clone(scheduler.Pending(f)), func(p scheduler.PendingPod) bool {
		return p.Id != "sched.nodes-unavailable" || p.Severity == finding.Info || !slices.Contains(p.Nodes, n.Name)
	})
}

func checkNodeState(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	for _, n := range f.GPUNodes {
		version := n.Status.NodeInfo.KubeletVersion
		if apart, known := minorsApart(f.Meta.Server, version); known && (apart < 0 || apart > 3) {
			r.Add(finding.Finding{
				Title: "the API server does not support the version of the node's kubelet", Object: n.Object(),
				Severity: finding.Warning,
				Evidence: []finding.Evidence{
					{Source: n.Object().String() + " .status.nodeInfo.kubeletVersion", Text: version},
					{Source: "version of the API server", Text: f.Meta.Server},
				},
				Fix: finding.Fix{
					Text: "Change the kubelet to the API server's version, or to one at most three minor versions older.",
				},
			})
		}
		if !n.Spec.Unschedulable {
			continue
		}
		issue := finding.Finding{
			Title: "the GPU node is cordoned", Object: n.Object(), Severity: finding.Info,
			Evidence: []finding.Evidence{{Source: n.Object().String() + " .spec.unschedulable", Text: "true"}},
			Fix: finding.Fix{
				Text: "Find out who cordoned the node and why. If the reason no longer applies, uncordon it.",
				Commands: []string{
					shell.Command("kubectl describe node %s", n.Name), shell.Command("kubectl uncordon %s", n.Name),
				},
			},
		}
		for _, t := range n.Spec.Taints {
			if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil {
				issue.Evidence[0].Time, issue.Began = t.TimeAdded.Time, t.TimeAdded.Time
			}
		}
		for _, label := range []string{
			"nvidia.com/gpu-driver-upgrade-state", "quarantineHealthEventIsCordoned",
			"dgxc.nvidia.com/nvsentinel-state",
		} {
			for _, from := range []map[string]string{n.Labels, n.Annotations} {
				if value := from[label]; value != "" && value != "upgrade-done" {
					issue.Evidence = append(issue.Evidence,
						finding.Evidence{Source: n.Object().String() + " .metadata", Text: label + "=" + value})
					issue.Fix = finding.Fix{
						Text: "The controller that set " + label + " cordoned the node, and will uncordon it when " +
							"its work there is complete. If the value does not change, find out what the controller " +
							"is waiting for. Do not uncordon the node before it has finished.",
						Commands: issue.Fix.Commands[:1],
					}
				}
			}
		}
		if taint, leaves := departs(n); leaves {
			issue.Evidence = append(issue.Evidence, finding.Evidence{Source: n.Object().String(), Text: taint})
			issue.Fix = finding.Fix{
				Text: "The node is being removed or shut down, so do not uncordon it: its pods need another node.",
			}
		}
		if waits := waitFor(f, n); len(waits) > 0 {
			issue.Severity = finding.Error
			issue.Title = "the GPU node is cordoned, and GPU pods are waiting for it"
		}
		r.Add(issue)
	}
}

func checkPressure(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/nodes") {
		return
	}
	for _, n := range f.GPUNodes {
		for _, kind := range []corev1.NodeConditionType{
			corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure,
		} {
			c := n.Condition(kind)
			if c.Status != corev1.ConditionTrue {
				continue
			}
			issue := finding.Finding{
				Title:  fmt.Sprintf("the node is under %s: its kubelet evicts pods and does not admit new ones", kind),
				Object: n.Object(), Severity: finding.Warning,
				Evidence: []finding.Evidence{facts.QuoteCondition(n, c)},
				Fix:      pressureFix(n, kind),
			}
			if len(waitFor(f, n)) > 0 {
				issue.Severity = finding.Error
			}
			if kind == corev1.NodeDiskPressure && n.Host != nil {
				for _, fs := range n.Host.Probe.Filesystems {
					issue.Evidence = append(issue.Evidence, finding.Evidence{
						Source: "file systems on Node " + n.Name,
						Text:   fmt.Sprintf("%s: %d of %d MiB free", fs.Path, fs.FreeBytes>>20, fs.Bytes>>20),
					})
				}
			}
			if kind == corev1.NodeDiskPressure {
				describeDisk(f, n, c.LastTransitionTime.Time, &issue)
			}
			r.Add(issue)
		}
	}
}

func pressureFix(n *facts.Node, kind corev1.NodeConditionType) finding.Fix {
	switch kind {
	case corev1.NodeDiskPressure:
		return finding.Fix{
			Text: "Find out what is filling the disk: images, logs, or files that containers write to emptyDir " +
				"volumes or outside their volumes. Remove or limit them, or give the node a larger disk: GPU images " +
				"take 10 to 20 GB each. The kubelet removes unused images automatically.",
			Commands: []string{
				shell.OnHost(n.Name, "df -h"), shell.OnHost(n.Name, "sudo crictl images"),
				shell.OnHost(n.Name, "sudo du -xsh /var/log /var/lib/kubelet/pods"),
			},
		}
	case corev1.NodeMemoryPressure:
		return finding.Fix{
			Text: "Find out what is using the node's memory, and set memory limits for GPU pods.",
			Commands: []string{
				"kubectl top pods -A --sort-by=memory", shell.Command("kubectl describe node %s", n.Name),
			},
		}
	}
	return finding.Fix{
		Text:     "Find out what is starting so many processes on the node.",
		Commands: []string{shell.OnHost(n.Name, "ps -eLf | wc -l")},
	}
}

package operator

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// condition is a status condition of a custom resource.
type condition struct {
	kind, status, reason, message string
	at                            time.Time
}

// conditions returns the status conditions of a custom resource, without malformed ones.
func conditions(u unstructured.Unstructured) []condition {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	var all []condition
	for _, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text := func(key string) string { s, _ := m[key].(string); return s }
		at, _ := time.Parse(time.RFC3339, text("lastTransitionTime")) // zero if invalid
		all = append(all, condition{text("type"), text("status"), text("reason"), text("message"), at})
	}
	return all
}

func (c condition) evidence(u unstructured.Unstructured) finding.Evidence {
	return finding.Evidence{
		Source: fmt.Sprintf("%s %s .status.conditions[%s]", u.GetKind(), u.GetName(), c.kind), Time: c.at,
		Text: words.Clip(strings.TrimSuffix(fmt.Sprintf("%s, reason %s: %s", c.status, c.reason, c.message), ": ")),
	}
}

func policyCheck() engine.Check {
	return engine.Check{
		ID: "op.clusterpolicy", Symptom: engine.Explained, Layer: finding.LayerOperator,
		Title: "the GPU operator does not reach the state that its ClusterPolicy or NVIDIADriver requests",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "status.state and status.conditions of ClusterPolicies and NVIDIADrivers, and the number of these " +
			"objects",
		Why: "The operator applies one ClusterPolicy and marks others as ignored. A state that is not ready is usually a consequence of another problem, and is reported so that nothing is missed. " +
			"A state younger than 2 minutes, or a driver upgrade in progress, is not a problem.",
		Explains: []string{"dp.none"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html",
		Sources: []string{
			"gpu-operator#331", "gpu-operator#368", "gpu-operator#377", "gpu-operator#667", "gpu-operator#723",
			"gpu-operator#1310",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/clusterpolicies") || r.Lacks(f, "api/nvidiadrivers") {
				return
			}
			for _, u := range slices.Concat(f.ClusterPolicies, f.NVIDIADrivers) {
				checkPolicy(f, r, u)
			}
		},
	}
}

func checkPolicy(f *facts.Facts, r *engine.Result, u unstructured.Unstructured) {
	state, _, _ := unstructured.NestedString(u.Object, "status", "state")
	kind := strings.ToLower(u.GetKind())
	object := finding.Object{Kind: u.GetKind(), Name: u.GetName()}
	found := finding.Finding{
		Severity: finding.Warning, Object: object, Confidence: finding.Certain,
		Evidence: []finding.Evidence{finding.FieldEvidence(object, ".status.state", "%s", state)},
		Title:    "the GPU operator reports that it is not ready",
		Fix: finding.Fix{
			Text: "Check the operands that the status names, and the operator's log.",
			Commands: []string{
				shell.Command("kubectl describe %s %s", kind, u.GetName()),
				facts.OperatorLog(f),
			},
		},
	}
	young := true
	for _, c := range conditions(u) {
		if (c.kind == "Error" && c.status == "True" || c.kind == "Ready" && c.status == "False") &&
			c.reason != "Ready" {
			found.Evidence = append(found.Evidence, c.evidence(u))
			young = young && !c.at.IsZero() && f.Now.Sub(c.at) < facts.OperandGrace
			switch c.reason {
			case "ReconcileFailed", "PrerequisiteNotMet":
				found.Severity, found.Title = finding.Error, "the GPU operator cannot apply its configuration"
			case "ConflictingNodeSelector":
				found.Severity, found.Title = finding.Error, "two NVIDIADriver resources select the same nodes"
				found.Fix = finding.Fix{
					Text:     "Make their node selectors disjoint.",
					Commands: []string{"kubectl get nvidiadrivers -o wide"},
				}
			}
		} else if c.kind == "Ready" {
			young = young && f.Now.Sub(c.at) < facts.OperandGrace
		}
	}
	switch state {
	case "ready", "":
		if found.Title == "the GPU operator reports that it is not ready" || len(found.Evidence) == 1 {
			r.Pass(object)
			return
		}
	case "ignored":
		found.Title = "a second ClusterPolicy is ignored: the operator applies only one"
		found.Fix = finding.Fix{
			Text:     "Move the settings of the ignored ClusterPolicy to the other one, then delete the ignored one.",
			Commands: []string{shell.Command("kubectl delete clusterpolicy %s", u.GetName())},
		}
		r.Add(found)
		return
	}
	if young && len(conditions(u)) > 0 {
		r.Pass(object)
		return
	}
	if slices.ContainsFunc(f.GPUNodes, upgrading) {
		found.Severity, found.Confidence = finding.Info, finding.Likely
		found.Title = "the GPU operator is not ready while it upgrades drivers"
	} else if e, ok := reconcileError(f); ok {
		describeReconcileError(f, e, &found)
	}
	r.Add(found)
}

// reconcileError returns the newest error in the operator's log about applying the ClusterPolicy. It ignores conflicts
// with concurrent changes, after which the operator retries.
func reconcileError(f *facts.Facts) (e finding.Evidence, ok bool) {
	for _, pod := range f.Component(facts.Operator) {
		for _, l := range f.LogsOf(pod) {
			for line := range strings.Lines(l.Text) {
				if reconcileFailed.MatchString(line) && !strings.Contains(line, "the object has been modified") {
					e = finding.Evidence{Source: facts.LogSource(l), Text: strings.TrimSpace(line)}
				}
			}
		}
	}
	return finding.Clipped(e), e.Text != ""
}

var (
	reconcileFailed = regexp.MustCompile(`(?i)\berror\b.*(?:cluster-?policy.*Reconciler error|` +
		`Reconciler error.*(?:cluster-?policy|nvidia-?driver)).*"error": ?"`)
	reconcileReason = regexp.MustCompile(`"error": ?"((?:[^"\\]|\\.)+)"`)
)

// describeReconcileError completes the finding about an operator that cannot apply its configuration. The operator
// creates objects in order and stops at the first error, so a missing device plugin is a consequence.
func describeReconcileError(f *facts.Facts, e finding.Evidence, found *finding.Finding) {
	found.Severity, found.Title = finding.Error, "the GPU operator cannot apply its configuration"
	found.Evidence = append(found.Evidence, e)
	if m := reconcileReason.FindStringSubmatch(e.Text); m != nil {
		found.Title += ": " + words.ClipTo(strings.ReplaceAll(m[1], `\"`, `"`), 160)
	}
	found.Decisive = !slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
		return facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.DevicePlugin
	})
}

// upgrading reports whether the node's driver is being upgraded and the upgrade has not failed.
func upgrading(n *facts.Node) bool {
	state := n.Labels["nvidia.com/gpu-driver-upgrade-state"]
	return state != "" && state != "upgrade-done" && state != "upgrade-failed" && state != "unknown"
}

func deployLabelCheck() engine.Check {
	return engine.Check{
		ID: "op.deploy-label-off", Layer: finding.LayerOperator,
		Title: "labels keep the GPU operator's pods off a node",
		Needs: []engine.Need{engine.NeedAPI}, InfoExplains: true, // the labels and their consequences are intentional
		Reads: "labels nvidia.com/gpu.deploy.* and nvidia.com/gpu.workload.config of GPU nodes",
		Why: "nvidia.com/gpu.deploy.operands=false keeps all operands off the node, the label of one operand keeps " +
			"that operand off, and a workload configuration for virtual machines withholds GPUs from containers. A " +
			"change to MIG or vGPU devices uses these labels to pause operands. This is an error if the pod that " +
			"makes the change is itself waiting for the paused operands. Otherwise, the labels are usually " +
			"intentional, so the finding is Info, a warning if pods are waiting for GPUs, or an error if no node is " +
			"left for the pods.",
		Explains: facts.GPULost("dp.none", "dp.capacity-zero", "gfd.labels"),
		// If the device plugin runs on the node, the user has installed the other components, too.
		ExplainsAs: map[string][]string{
			pluginStays: {"gfd.labels"},
			leftPaused: facts.GPULost("dp.none", "dp.capacity-zero", "dp.not-running", "gfd.labels",
				"op.operand-failing", "op.init-chain", "op.clusterpolicy", "mig.manager-failed"),
		},
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html" +
			"#preventing-installation-of-operands-on-some-nodes",
		Sources: []string{"gpu-operator controllers/state_manager.go", "gpu-operator#2845"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/nodes") {
				return
			}
			left := slices.ContainsFunc(f.GPUNodes,
				func(n *facts.Node) bool { return len(switchedOff(n)) == 0 || facts.Advertises(f, n) })
			awaited := scheduler.Awaited(f, "sched.all-in-use", "sched.fragmented") // pods that need additional GPUs
			for _, n := range f.GPUNodes {
				if checkLeftPaused(f, r, n) {
					continue
				}
				off := switchedOff(n)
				if len(off) == 0 || facts.Advertises(f, n) && len(off) == 1 &&
					off[0] == "nvidia.com/gpu.deploy.operands" {
					r.Pass(n.Object())
					continue
				}
				severity, as := finding.Info, ""
				switch {
				case len(facts.Current(n, facts.DevicePlugin)) > 0:
					as = pluginStays
				case awaited[n.Name] && !left && !facts.ForMachines(n):
					severity = finding.Error
				case awaited[n.Name]:
					severity = finding.Warning // the node may have GPUs that pods are waiting for
				}
				fix := finding.Fix{
					Text: "If this is not intended, remove the labels.", Commands: []string{removeLabels(n, off)},
				}
				r.Add(finding.Finding{
					Severity: severity, Object: n.Object(), As: as,
					Title:    "labels keep parts of the GPU operator off the node",
					Evidence: facts.LabelEvidence(n, off...), Fix: fix,
				})
			}
		},
	}
}

// leftPausedAfter is the maximum time that a change to MIG or vGPU devices may take.
const leftPausedAfter = 15 * time.Minute

// checkLeftPaused reports operands that stay paused because the pod that should resume them is itself waiting for them.
func checkLeftPaused(f *facts.Facts, r *engine.Result, n *facts.Node) bool {
	labels, pod := facts.LeftPaused(n)
	if pod == nil || f.Now.Sub(pod.CreationTimestamp.Time) < leftPausedAfter {
		return false
	}
	resume := "kubectl label node %s --overwrite"
	args := []any{n.Name}
	for _, label := range labels {
		resume += " %s=true"
		args = append(args, label)
	}
	found := finding.Finding{
		Object: n.Object(), Confidence: finding.Likely, Severity: finding.Error, As: leftPaused,
		Title: "labels on the node pause operands of the GPU operator, and the pod that would resume them is waiting",
		Cause: "A change to the GPUs was interrupted after it had paused the operands. The pod that makes such " +
			"changes starts only when the operands are running again, so the problem does not resolve itself.",
		Evidence: append(facts.LabelEvidence(n, labels...), finding.FieldEvidence(facts.PodObject(pod), ".status",
			"%s since %s, in an init container", pod.Status.Phase, pod.CreationTimestamp.UTC().Format(time.RFC3339))),
		Fix: finding.Fix{
			Text: "If the pod is still waiting and the labels have not changed, set them to true; the operator then " +
				"starts the operands, and the pod continues. Neither the driver nor the node needs a restart. For a " +
				"permanent fix, update the GPU operator to a release that resumes the operands automatically.",
			Commands: []string{
				shell.Command("kubectl get pods -n %s -o wide --field-selector spec.nodeName=%s", pod.Namespace, n.Name),
				shell.Command(resume, args...),
			},
		},
	}
	for _, l := range f.LogsOf(pod) {
		if e := facts.LastLines(f, pod, l.Container, 1); len(e) > 0 {
			found.Evidence = append(found.Evidence, e...)
			break
		}
	}
	r.Add(found.ForPods(pod.Namespace + "/" + pod.Name))
	return true
}

// leftPaused is the kind (Finding.As) of findings about operands that no component resumes.
const leftPaused = "left paused"

// pluginStays is the kind (Finding.As) of findings about nodes on which the device plugin runs despite the labels.
const pluginStays = "plugin stays"

// switchedOff returns the labels that keep operands off the node: deploy labels with the value false, and a workload
// configuration other than container. It ignores "paused-for-...", which the operator sets temporarily.
func switchedOff(n *facts.Node) []string {
	var off []string
	for label, value := range n.Labels {
		switch {
		case label == "nvidia.com/gpu.workload.config":
			if value != "container" {
				off = append(off, label)
			}
		case strings.HasPrefix(label, "nvidia.com/gpu.deploy.") && value == "false":
			off = append(off, label)
		}
	}
	slices.Sort(off)
	return off
}

func versionsCheck() engine.Check {
	return engine.Check{
		ID: "op.versions", Layer: finding.LayerOperator,
		Title: "versions of the GPU operator's components do not match",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "the state of the Helm releases, image tags of the operator and its validator, the names of the CRDs, and the operator's log",
		Why: "Helm does not upgrade CRDs automatically, so a new operator may lack a kind or field that it needs; " +
			"its log then shows this. A release whose upgrade failed may be a mix of both versions. Image tags that " +
			"merely differ are Info.",
		Explains: []string{"op.operand-failing", "op.clusterpolicy", "dp.none"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/upgrade.html",
		Sources:  []string{"gpu-operator deployments/gpu-operator/values.yaml (operator.upgradeCRD)"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if !r.Lacks(f, "helm") {
				checkReleases(f, r)
			}
			checkOperatorLog(f, r)
			checkTags(f, r)
		},
	}
}

func checkReleases(f *facts.Facts, r *engine.Result) {
	for _, h := range f.HelmReleases {
		object := finding.Object{Kind: "HelmRelease", Namespace: h.Namespace, Name: h.Name}
		if !slices.Contains([]string{facts.ChartOperator, facts.ChartDevicePlugin, facts.ChartDRA}, h.Chart) ||
			h.Status != "failed" && !strings.HasPrefix(h.Status, "pending-") {
			r.Pass(object)
			continue
		}
		fix := finding.Fix{
			Text:     "Check the release history. Roll back to the last revision that was deployed, or upgrade again.",
			Commands: []string{shell.Command("helm history %s -n %s", h.Name, h.Namespace)},
		}
		if strings.HasPrefix(h.Status, "pending-") {
			fix.Text =
				"Check the release history. If no upgrade is in progress, the upgrade was interrupted: roll back to the last revision that was deployed, because Helm refuses upgrades until then."
		}
		if h.Revision > 1 {
			fix.Commands = append(
				fix.Commands, shell.Command("helm rollback %s %d -n %s # if this revision was deployed",
					h.Name, h.Revision-1, h.Namespace),
			)
		}
		severity := finding.Warning
		if strings.HasPrefix(h.Status, "pending-") {
			severity = finding.Info // an upgrade may be in progress
		}
		r.Add(finding.Finding{
			Severity: severity, Object: object, Title: "the Helm release is not fully deployed",
			Evidence: []finding.Evidence{finding.FieldEvidence(object, "status", "%s, chart %s-%s, revision %d",
				h.Status, h.Chart,
				h.ChartVersion, h.Revision)}, Fix: fix,
		})
	}
}

// checkOperatorLog reports kinds and fields that the operator requires but the API server does not know.
func checkOperatorLog(f *facts.Facts, r *engine.Result) {
	for _, pod := range f.Component(facts.Operator) {
		e, ok := facts.LogEvidence(f, pod, `no matches for kind "NVIDIADriver"`, `no matches for kind "ClusterPolicy"`,
			`unknown field "spec.`, `no kind is registered for the type v1.ClusterPolicy`)
		if !ok {
			continue
		}
		severity := finding.Warning
		if _, bad := facts.OperandTrouble(f, pod); bad {
			severity = finding.Error
		}
		fix := finding.Fix{
			Text: "Upgrade the CRDs to the operator's version. Helm does not do this by default.",
		}
		if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
			fix.Commands = []string{facts.HelmUpgrade(h, "operator.upgradeCRD=true")}
		}
		r.Add(finding.Finding{
			Severity: severity, Confidence: finding.Likely, Object: facts.PodObject(pod),
			Title: "the operator requires a kind or a field that the cluster's CRDs do not define",
			Evidence: []finding.Evidence{
				e, finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "CRDs", "%s", strings.Join(f.CRDs, ", ")),
			},
			Fix: fix,
		}.ForPods(pod.Namespace + "/" + pod.Name))
		return
	}
}

// checkTags compares the image tags of the operator and its validator, which are released together.
func checkTags(f *facts.Facts, r *engine.Result) {
	for _, operator := range f.Component(facts.Operator) {
		want, image := releaseTag(operator)
		for _, validator := range f.Component(facts.Validator) {
			got, other := releaseTag(validator)
			if want == "" || got == "" || want == got || f.Now.Sub(operator.CreationTimestamp.Time) < time.Hour {
				continue // after an upgrade, the operands are updated one by one
			}
			r.Add(finding.Finding{
				Severity: finding.Info, Confidence: finding.Possible, Object: facts.PodObject(validator),
				Title: "the operator and its validator are from different releases",
				Evidence: []finding.Evidence{
					finding.FieldEvidence(facts.PodObject(operator), ".spec.containers[].image", "%s", image),
					finding.FieldEvidence(facts.PodObject(validator), ".spec.containers[].image", "%s", other),
				},
				Fix: finding.Fix{Text: "The operator also upgrades its operands. If it does not, the ClusterPolicy pins old versions (spec.validator.version).",
					Commands: []string{"kubectl get clusterpolicies -o yaml"}},
			})
			return
		}
	}
}

// releaseTag returns the release in a pod's image tag, such as v25.3.0 for gpu-operator:v25.3.0-ubi9. It returns an
// empty string if the tag contains no release.
func releaseTag(pod *corev1.Pod) (version, image string) {
	for _, c := range pod.Spec.Containers {
		name, _, _ := strings.Cut(c.Image, "@")
		if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
			version, _, _ = strings.Cut(name[at+1:], "-")
			if strings.Count(version, ".") == 2 && strings.HasPrefix(version, "v") {
				return version, c.Image
			}
		}
	}
	return "", ""
}

// removeLabels returns the command that removes labels from a node.
func removeLabels(n *facts.Node, keys []string) string {
	format, args := "kubectl label node %s", []any{n.Name}
	for _, key := range keys {
		format, args = format+" %s-", append(args, key)
	}
	return shell.Command(format, args...)
}

package observability

import (
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// monitors matches the names of DaemonSets that monitor NVIDIA GPUs.
var monitors = regexp.MustCompile(`dcgm|(?:gpu|nvidia).*(?:exporter|monitor|metrics)`)

// ofEngine is the kind (Finding.As) of findings about DaemonSets that an agent needs in order to reach DCGM's host
// engine. Without them, the agent reports its nodes as faulty.
const ofEngine = "engine"

func excludedCheck() engine.Check {
	return engine.Check{
		ID: "obs.excluded", Layer: finding.LayerObservability,
		Title: "a DaemonSet that monitors GPUs runs on no node, because of a taint or a label",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "DaemonSets of GPU exporters with 0 desired pods, their node selector, affinity and tolerations, and labels " +
			"and taints of GPU nodes",
		Why: "A DaemonSet without a matching node has no pods and no events, and its chart installs successfully. " +
			"The dcgm-exporter chart sets no toleration for the nvidia.com/gpu taint. DaemonSets of the GPU operator " +
			"and of cloud providers, and clusters in which another DaemonSet monitors the GPUs, are ignored.",
		ExplainsAs: map[string][]string{ofEngine: {"node.condition"}},
		Sources:    []string{"dcgm-exporter#731", "containers-roadmap#2567"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/daemonsets") || r.Lacks(f, "api/nodes") || r.Lacks(f, "api/pods") {
				return
			}
			for i := range f.DaemonSets {
				d := &f.DaemonSets[i]
				if !monitors.MatchString(d.Name) || metav1.GetControllerOfNoCopy(d) != nil ||
					strings.HasPrefix(d.Namespace, "gke-") {
					continue
				}
				if d.Status.DesiredNumberScheduled > 0 || len(f.Component(facts.DCGMExporter)) > 0 {
					r.Pass(finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name})
				} else {
					checkExcluded(f, r, d)
				}
			}
		},
	}
}

// checkExcluded reports what keeps a DaemonSet off the GPU nodes: a taint, or else a label that no node has.
func checkExcluded(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet) {
	var nearest *facts.Node
	least := 0
	for _, n := range f.GPUNodes {
		lacks := len(scheduler.MissingLabels(d.Spec.Template.Spec, n))
		if nearest == nil || lacks < least {
			nearest, least = n, lacks
		}
	}
	if nearest == nil || !facts.Alive(nearest) {
		return
	}
	for key := range d.Spec.Template.Spec.NodeSelector {
		if strings.HasPrefix(key, "nvidia.com/gpu.deploy.") {
			return // the GPU operator's, which op.deploy-label-off checks
		}
	}
	why, e := scheduler.Excludes(d, nearest)
	taints := facts.Untolerated(nearest, d)
	if why == "" || least > 0 && (len(taints) > 0 || facts.Autoscaled(f)) {
		return
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	fix := scheduler.LetIn("GPU exporter", d, nearest)
	if len(taints) > 0 {
		fix.Text = "In the chart's values or in the manifest, add tolerations with the operator Exists for the keys " +
			"of these taints on the GPU nodes: " + facts.TaintsText(taints) + ". In a chart, the list replaces the " +
			"default, so repeat the tolerations that the DaemonSet already has. Leave the taints on the nodes."
		fix.Commands = []string{
			shell.Command("kubectl get daemonset %s -n %s -o jsonpath='{.spec.template.spec.tolerations}'", d.Name,
				d.Namespace),
		}
	}
	if h, ok := facts.ReleaseOf(f, "dcgm-exporter"); ok && h.Namespace == d.Namespace {
		fix.Commands = append(fix.Commands, facts.HelmUpgradeFile(h))
	}
	found := finding.Finding{
		Object: object, Severity: finding.Warning, Confidence: finding.Certain,
		Title: d.Name + ", which monitors GPUs, runs on no node, because " + why,
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled), e,
		},
		Fix: fix,
	}
	for _, n := range f.GPUNodes {
		found.Nodes = append(found.Nodes, n.Name)
	}
	if e, ok := engineMissed(f); ok && strings.Contains(d.Name, "dcgm") && !strings.Contains(d.Name, "exporter") {
		found.As, found.Evidence = ofEngine, append(found.Evidence, e)
		found.Cause = "An agent that cannot reach DCGM's host engine reports the node's GPUs as faulty. Do not " +
			"replace or reboot the node."
	}
	r.Add(found)
}

// engineMissed quotes a node condition of an agent that cannot reach DCGM's host engine. It returns false if there is
// none, or if a condition reports an XID.
func engineMissed(f *facts.Facts) (e finding.Evidence, ok bool) {
	for _, n := range f.GPUNodes {
		for _, c := range n.Status.Conditions {
			if len(facts.XIDsIn(c.Reason+" "+c.Message)) > 0 {
				return e, false
			}
			if !ok && strings.Contains(c.Message, "onnecting to nv-hostengine") {
				e, ok = facts.QuoteCondition(n, c), true
			}
		}
	}
	return e, ok
}

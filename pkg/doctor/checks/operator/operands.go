package operator

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

func operandCheck() engine.Check {
	return engine.Check{
		ID: "op.operand-failing", Symptom: engine.Explained, Layer: finding.LayerOperator,
		Title: "a pod of the GPU software does not become ready",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "state, last state and restarts of all containers in the driver, toolkit, feature discovery, DCGM, " +
			"MIG manager, MPS, validator, operator, NFD and DRA pods, their newest warning, and the end of their logs",
		Why: "This is a symptom, reported in case no other check finds the cause. Pods that have been starting for " +
			"less than 2 minutes (20 for the driver), have terminated, or are being deleted are ignored.",
		Explains: []string{"op.clusterpolicy", "gfd.labels", "wl.cuda-vs-driver", "dra.unallocatable"},
		ExplainsAs: map[string][]string{
			ofClaim:          {"wl.message", "wl.pod-failing", "dra.prepare"},
			finding.OfPlugin: {"nfd.labels"},
		},
		Doc:     "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html",
		Sources: []string{"gpu-operator#1598", "gpu-operator#441"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, c := range operandKinds() {
				for _, pod := range f.Component(c) {
					checkOperand(f, r, c, pod)
				}
			}
		},
	}
}

// operandKinds returns all components except the device plugin, which has its own check.
func operandKinds() []facts.Component {
	return []facts.Component{
		facts.Driver, facts.Toolkit, facts.FeatureDiscovery, facts.DCGMExporter, facts.DCGM, facts.MIGManager,
		facts.MPS, facts.Validator, facts.Operator, facts.NFD, facts.DRADriver,
	}
}

func checkOperand(f *facts.Facts, r *engine.Result, c facts.Component, pod *corev1.Pod) {
	if n := f.Node(pod.Spec.NodeName); n != nil && !facts.Alive(n) {
		r.Unknown(facts.PodObject(pod), "node %s is not Ready: the pod's status is out of date", n.Name)
		return
	}
	t, bad := facts.OperandTrouble(f, pod)
	if !bad {
		r.Pass(facts.PodObject(pod))
		return
	}
	found := facts.TroubleFinding(t)
	found.Title = fmt.Sprintf("a pod of the %s %s", c, facts.TroubleWords(t))
	if slices.Contains(
		[]facts.Component{
			facts.DCGMExporter, facts.DCGM, facts.FeatureDiscovery, facts.MIGManager, facts.NFD, facts.Operator,
		}, c,
	) {
		found.Severity = finding.Warning // GPU workloads run without the component
	}
	if c == facts.NFD && strings.Contains(pod.Name, "master") {
		found.As, found.Own = finding.OfPlugin, true // it labels all nodes
		for _, n := range f.GPUNodes {
			found.Nodes = append(found.Nodes, n.Name)
		}
	}
	if c == facts.DRADriver {
		found = found.ForPods(pod.Namespace + "/" + pod.Name)
		for _, waiting := range f.ClaimPods {
			if waiting.Spec.NodeName == "" {
				found = found.ForPods(waiting.Namespace + "/" + waiting.Name)
			}
		}
	}
	if c == facts.MPS {
		found = forClaim(f, pod, found)
	}
	if n := f.Node(pod.Spec.NodeName); n != nil && c == facts.Driver {
		// A failure of the driver container affects all GPU pods on the node.
		found = found.ForPods(pod.Namespace + "/" + pod.Name)
		for _, other := range n.Pods {
			if f.AsksForGPU(other) && !facts.Ended(other) {
				found = found.ForPods(other.Namespace + "/" + other.Name)
			}
		}
	}
	r.Add(found)
}

// ofClaim is the kind (Finding.As) of findings about an MPS control daemon that the DRA driver starts for a claim.
const ofClaim = "of a claim"

// forClaim extends the finding to the pods that use a claim if the finding's pod is the claim's MPS control daemon. The
// name of the daemon contains the claim's UID.
func forClaim(f *facts.Facts, daemon *corev1.Pod, found finding.Finding) finding.Finding {
	for i := range f.ResourceClaims {
		claim := &f.ResourceClaims[i]
		if claim.UID == "" || !strings.Contains(daemon.Name, string(claim.UID)) {
			continue
		}
		found.As, found.Decisive = ofClaim, true // the daemon's log is closer to the cause than its clients' errors
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.Resource == "pods" {
				found = found.ForPods(daemon.Namespace+"/"+daemon.Name, claim.Namespace+"/"+consumer.Name)
			}
		}
	}
	return found
}

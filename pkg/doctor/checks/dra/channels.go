package dra

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// equals matches a condition on an attribute in the selector of a DeviceClass.
var equals = regexp.MustCompile(`\.attributes\[["'][\w./-]+["']\]\.(\w+) == (?:["']([^"']*)["']|(\d+))`)

// conditions returns the attributes that a DeviceClass requires, as submatches of equals. It reads only conditions that
// are joined with &&.
func conditions(class *resourcev1.DeviceClass) (all [][]string) {
	if class == nil {
		return nil
	}
	for _, s := range class.Spec.Selectors {
		if s.CEL != nil && !strings.Contains(s.CEL.Expression, "||") && !strings.Contains(s.CEL.Expression, "!") {
			all = append(all, equals.FindAllStringSubmatch(s.CEL.Expression, -1)...)
		}
	}
	return all
}

// meets reports whether a device has the required attributes.
func meets(wanted [][]string, d *resourcev1.Device) bool {
	return !slices.ContainsFunc(wanted, func(m []string) bool {
		a := d.Attributes[resourcev1.QualifiedName(m[1])]
		return !(a.StringValue != nil && *a.StringValue == m[2] || a.IntValue != nil && fmt.Sprint(*a.IntValue) == m[3])
	})
}

// required matches a condition on an attribute, as a whole.
var required = regexp.MustCompile(`^device\.attributes\[["']([\w.-]+)["']\](?:\.(\w+)|\[["'](\w+)["']\])` +
	`\s*==\s*(?:"([^"]*)"|'([^']*)'|(true|false|-?\d+))$`)

// unmatched returns evidence that no device of a driver has the value of an attribute that a claim requires, or nil. It
// evaluates only conditions joined with &&, so devices that have the value may not match either.
func unmatched(f *facts.Facts, claim *resourcev1.ResourceClaim, class, driver string) []finding.Evidence {
	for _, request := range claim.Spec.Devices.Requests {
		if request.Exactly == nil || request.Exactly.DeviceClassName != class {
			continue
		}
		for _, s := range request.Exactly.Selectors {
			if s.CEL == nil || strings.ContainsAny(s.CEL.Expression, "|?!") {
				continue
			}
			for and := range strings.SplitSeq(s.CEL.Expression, "&&") {
				m := required.FindStringSubmatch(strings.TrimSpace(and))
				if m == nil {
					continue
				}
				name, wanted := m[2]+m[3], m[4]+m[5]+m[6]
				devices, matching, values := 0, 0, map[string]int{}
				for _, slice := range f.ResourceSlices {
					if slice.Spec.Driver != driver {
						continue
					}
					for _, d := range slice.Spec.Devices {
						devices++
						for key, a := range d.Attributes {
							domain, short, ok := strings.Cut(string(key), "/")
							if !ok {
								domain, short = driver, domain
							}
							value := valueOf(a)
							values[short+"="+value]++
							if domain == m[1] && short == name && value == wanted {
								matching++
							}
						}
					}
				}
				if devices == 0 || matching > 0 {
					continue
				}
				var shared []string
				for _, value := range words.SortedKeys(values) {
					if values[value] > devices/4 && !strings.HasSuffix(value, "=") {
						shared = append(shared, fmt.Sprintf("%s (%d)", value, values[value]))
					}
				}
				return []finding.Evidence{
					finding.FieldEvidence(finding.Object{Kind: "ResourceClaim", Namespace: claim.Namespace,
						Name: claim.Name}, ".spec.devices.requests["+request.Name+"].exactly.selectors", "%s", m[0]),
					finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "ResourceSlices",
						"no device of %s has %s=%s; %s with: %s", driver, name, wanted,
						count.Of(devices, "device"), words.Clip(strings.Join(shared, ", "))),
				}
			}
		}
	}
	return nil
}

// valueOf formats the value of an attribute.
func valueOf(a resourcev1.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	case a.VersionValue != nil:
		return *a.VersionValue
	}
	return ""
}

// ofUnmatched returns the finding about a claim that requires a value that no device has. The scheduler has reported
// that it cannot allocate the claim, and no autoscaler is adding a node, which could have other devices.
func ofUnmatched(
	f *facts.Facts, pod *corev1.Pod, claim *resourcev1.ResourceClaim, class, driver string, said []finding.Evidence,
) (found finding.Finding, ok bool) {
	if _, ok := mentions(said, "cannot allocate all claims"); !ok || len(facts.GPUDemand(pod)) == 0 &&
		!f.AsksForGPU(pod) || slices.ContainsFunc(scheduler.Pending(f), func(p scheduler.PendingPod) bool {
		return p.Pod == pod && p.Id == "sched.waiting"
	}) {
		return found, false
	}
	evidence := unmatched(f, claim, class, driver)
	if evidence == nil {
		return found, false
	}
	return claimFinding(pod, append(evidence, said...),
		"no device of the DRA driver "+driver+" has the attribute that the claim selects: "+evidence[0].Text,
		finding.Fix{
			Text: "Select the devices by attributes that they have (see the evidence): correct the selector in the " +
				"claim or its template, and recreate the pod. If the devices should have this value, the driver " +
				"detects it wrongly: check the log of its pods and the fixes in its newer releases.",
			Commands: []string{
				shell.Command("kubectl get resourceclaims,resourceclaimtemplates -n %s -o yaml", pod.Namespace),
				"kubectl get resourceslices -o yaml",
			},
		}), true
}

// devices returns the total number of a driver's devices in a class, and the number that are not allocated to a claim.
// If the class selects none of the driver's devices, or is nil, devices counts all of them.
func devices(f *facts.Facts, driver string, class *resourcev1.DeviceClass) (total, free int) {
	taken := map[[2]string]bool{}
	for i := range f.ResourceClaims {
		if a := f.ResourceClaims[i].Status.Allocation; a != nil {
			for _, d := range a.Devices.Results {
				if d.Driver == driver && (d.AdminAccess == nil || !*d.AdminAccess) {
					taken[[2]string{d.Pool, d.Device}] = true
				}
			}
		}
	}
	wanted, newest := conditions(class), map[string]int64{}
	for _, s := range f.ResourceSlices {
		if s.Spec.Driver == driver {
			newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
		}
	}
	for i := range f.ResourceSlices {
		s := &f.ResourceSlices[i].Spec
		if s.Driver != driver || s.Pool.Generation != newest[s.Pool.Name] { // the driver deletes old slices later
			continue
		}
		for j := range s.Devices {
			if d := &s.Devices[j]; meets(wanted, d) {
				total++
				if !taken[[2]string{s.Pool.Name, d.Name}] {
					free++
				}
			}
		}
	}
	if total == 0 && class != nil {
		return devices(f, driver, nil)
	}
	return total, free
}

// channelsTaken returns the finding about a pod that claims a channel of a ComputeDomain while other pods hold the
// channels of all nodes.
func channelsTaken(f *facts.Facts, pod *corev1.Pod, evidence []finding.Evidence) finding.Finding {
	for i := range f.ResourceClaims {
		c := &f.ResourceClaims[i]
		if a := c.Status.Allocation; a != nil && len(c.Status.ReservedFor) > 0 && len(evidence) < words.Few+2 &&
			slices.ContainsFunc(a.Devices.Results, func(d resourcev1.DeviceRequestAllocationResult) bool {
				return d.Driver == draDomain && strings.HasPrefix(d.Device, "channel")
			}) {
			evidence = append(evidence, finding.FieldEvidence(finding.Object{Kind: "ResourceClaim",
				Namespace: c.Namespace, Name: c.Name}, ".status", "%s of pool %s, for Pod %s",
				a.Devices.Results[0].Device, a.Devices.Results[0].Pool, c.Status.ReservedFor[0].Name))
		}
	}
	found := claimFinding(pod, evidence, "each node has only one ComputeDomain channel, and other pods hold the "+
		"channels of all nodes", finding.Fix{
		Text: "Only one pod of a node can hold its channel, so free GPUs and more GPUs in the node do not help. If the " +
			"pod needs no NVLink to other nodes, which is likely if it uses fewer GPUs than a node has, remove the claim " +
			"from its template. If an operator adds the claim, disable this for the workload (Grove: annotation " +
			"grove.io/auto-mnnvl: disabled on the PodCliqueSet, or its automatic MNNVL in the operator's configuration) " +
			"and recreate its pods. If the pod needs the channel, let one pod use all GPUs of a node, or wait for another node.",
		Commands: []string{"kubectl get resourceclaims -A",
			shell.Command("kubectl -n %s get pod %s -o yaml", pod.Namespace, pod.Name)},
	})
	all, want := scheduler.New(f), facts.GPUDemand(pod)
	found.Severity = finding.Warning
	for _, n := range f.GPUNodes {
		for name, count := range want {
			if all.Free(n, name) >= count {
				found.Severity = finding.Error // the node has room but for the channel
			}
		}
	}
	return found
}

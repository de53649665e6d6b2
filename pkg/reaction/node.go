package reaction

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// NVSentinel's data on a node: its state, and its decision, even in a dry run.
const (
	stateLabel       = "dgxc.nvidia.com/nvsentinel-state"
	decisionOnNode   = "quarantineHealthEvent"
	taintedByNodes   = "node.kubernetes.io/"
	taintedByCluster = "node.cloudprovider.kubernetes.io/"
)

// states are the values of NVSentinel's label, with their meanings.
var states = map[string]Name{
	"drain-succeeded":       Drained,
	"drain-failed":          DrainFailed,
	"remediating":           Remediating,
	"remediation-succeeded": Remediated,
	"remediation-failed":    RemediationFails,
}

// own are the conditions that Kubernetes itself sets.
var own = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	corev1.NodeNetworkUnavailable, "EtcdIsVoter",
}

// nodeChanges returns the reactions between two states of a node.
func nodeChanges(before, after *corev1.Node, at time.Time) []Reaction {
	c := comparison{before: before, after: after, at: at}
	c.conditions()
	c.devices()
	c.label()
	c.schedulable()
	c.taints()
	if old, now := before.Status.NodeInfo.BootID, after.Status.NodeInfo.BootID; old != "" && now != "" && old != now {
		c.add(Rebooted, "", "boot ID "+now)
	}
	return c.found
}

type comparison struct {
	before, after *corev1.Node
	at            time.Time
	found         []Reaction
}

func (c *comparison) add(name Name, by, text string) {
	c.found = append(c.found, Reaction{
		Time: c.at, Name: name, Node: c.after.Name, By: by, Who: Who(by), Text: text,
	})
}

func (c *comparison) conditions() {
	status := func(node *corev1.Node, of corev1.NodeConditionType) corev1.ConditionStatus {
		for _, one := range node.Status.Conditions {
			if one.Type == of {
				return one.Status
			}
		}
		return ""
	}
	for _, now := range c.after.Status.Conditions {
		was := status(c.before, now.Type)
		if was == now.Status {
			continue
		}
		by := writer(c.before, c.after, "status", "conditions",
			fieldpath.KeyByFields("type", string(now.Type)), "status")
		text := fmt.Sprintf("condition %s is %s", now.Type, now.Status)
		if now.Message != "" {
			text += ": " + now.Message
		}
		switch {
		case now.Type == corev1.NodeReady && now.Status == corev1.ConditionTrue:
			c.add(Ready, by, text)
		case now.Type == corev1.NodeReady:
			c.add(NotReady, by, text)
		case slices.Contains(own, now.Type):
		case now.Status == corev1.ConditionTrue:
			c.add(Detected, by, text)
		case was == corev1.ConditionTrue:
			c.add(Cleared, by, text)
		}
	}
}

// devices compares the allocatable amounts of the resources that device plugins advertise.
func (c *comparison) devices() {
	for _, name := range slices.Sorted(maps.Keys(c.after.Status.Allocatable)) {
		now := c.after.Status.Allocatable[name]
		was, known := c.before.Status.Allocatable[name]
		if !known || !isDevice(name) {
			continue
		}
		capacity := c.after.Status.Capacity[name]
		text := fmt.Sprintf("%s of %s %s can be allocated, previously %s", now.String(),
			capacity.String(), name, was.String())
		switch now.Cmp(was) {
		case -1:
			c.add(DeviceUnhealthy, "kubelet", text)
		case 1:
			c.add(DeviceHealthy, "kubelet", text)
		}
	}
}

// isDevice reports whether a resource is advertised by a device plugin: its name has a domain other than Kubernetes'.
func isDevice(name corev1.ResourceName) bool {
	domain, _, found := strings.Cut(string(name), "/")
	return found && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

func (c *comparison) label() {
	if was, now := c.before.Labels[stateLabel], c.after.Labels[stateLabel]; was != now {
		if name, known := states[now]; known {
			c.add(name, writer(c.before, c.after, "metadata", "labels", stateLabel), stateLabel+"="+now)
		}
	}
	was, now := c.before.Annotations[decisionOnNode], c.after.Annotations[decisionOnNode]
	if now != "" && was == "" {
		c.add(Decided, writer(c.before, c.after, "metadata", "annotations", decisionOnNode),
			"annotation "+decisionOnNode)
	}
}

func (c *comparison) schedulable() {
	was, now := c.before.Spec.Unschedulable, c.after.Spec.Unschedulable
	switch {
	case !was && now:
		c.add(Cordoned, writer(c.before, c.after, "spec", "unschedulable"), "")
	case was && !now:
		c.add(Uncordoned, writer(c.before, c.after, "spec", "unschedulable"), "")
	}
}

// taints compares the taints, without those that Kubernetes derives from conditions and from spec.unschedulable.
func (c *comparison) taints() {
	meaningful := func(node *corev1.Node) []string {
		var all []string
		for _, t := range node.Spec.Taints {
			if !strings.HasPrefix(t.Key, taintedByNodes) && !strings.HasPrefix(t.Key, taintedByCluster) {
				all = append(all, t.ToString())
			}
		}
		return all
	}
	was, now := meaningful(c.before), meaningful(c.after)
	by := func() string { return writer(c.before, c.after, "spec", "taints") }
	for _, t := range now {
		if !slices.Contains(was, t) {
			c.add(Tainted, by(), t)
		}
	}
	for _, t := range was {
		if !slices.Contains(now, t) {
			c.add(Untainted, by(), t)
		}
	}
}

// writer returns the field manager that wrote a field between two states of a node, or "" if it cannot be determined. A
// removed field has no owner, so its writer is the only manager whose entry for the same part of the object has
// changed.
func writer(before, after *corev1.Node, path ...any) string {
	wanted := fieldpath.MakePathOrDie(path...)
	part := ""
	if path[0] == "status" {
		part = "status"
	}
	var owner, changed []string
	for _, entry := range after.ManagedFields {
		if entry.Subresource != part || entry.FieldsV1 == nil {
			continue
		}
		if !hadEntry(before.ManagedFields, entry) {
			changed = append(changed, entry.Manager)
		}
		if kubeedit.ParseFields(entry.FieldsV1.GetRawBytes()).Has(wanted) {
			owner = append(owner, entry.Manager)
		}
	}
	// The writer is the owner that has just written the field. Others may own the field as well because they wrote the
	// same value.
	for _, name := range changed {
		if slices.Contains(owner, name) {
			return name
		}
	}
	switch {
	case len(owner) == 1:
		return owner[0]
	case len(owner) == 0 && len(changed) == 1:
		return changed[0]
	case len(owner) == 0 && len(changed) == 0:
		return vanished(before.ManagedFields, after.ManagedFields, part)
	}
	return ""
}

// hadEntry reports whether the previous entries contain one with the same time and the same fields.
func hadEntry(entries []metav1.ManagedFieldsEntry, entry metav1.ManagedFieldsEntry) bool {
	return slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == entry.Manager && e.Operation == entry.Operation && e.Subresource == entry.Subresource &&
			e.Time.Equal(entry.Time) && e.FieldsV1 != nil && e.FieldsV1.GetRawString() == entry.FieldsV1.GetRawString()
	})
}

// vanished returns the only manager that no longer has an entry: this manager removed the last field that it owned.
func vanished(before, after []metav1.ManagedFieldsEntry, part string) string {
	var gone []string
	for _, e := range before {
		same := func(o metav1.ManagedFieldsEntry) bool {
			return o.Manager == e.Manager && o.Operation == e.Operation && o.Subresource == e.Subresource
		}
		if e.Subresource == part && !slices.ContainsFunc(after, same) {
			gone = append(gone, e.Manager)
		}
	}
	if len(gone) == 1 {
		return gone[0]
	}
	return ""
}

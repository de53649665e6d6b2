// Package reaction recognizes how a cluster reacts to a fault, and who causes each reaction: a detector reports the
// fault; a node is cordoned, drained and returned to service; pods fail, and are removed and replaced.
//
// A Tracker compares the states of nodes and pods as they arrive; it makes no requests. Watch passes the states from
// the API server to a Tracker.
package reaction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

// Name is the kind of a reaction.
type Name string

// The reactions, in their usual order.
const (
	Detected         Name = "detected"
	Cleared          Name = "cleared"
	DeviceUnhealthy  Name = "device-unhealthy"
	DeviceHealthy    Name = "device-healthy"
	Decided          Name = "decided"
	Cordoned         Name = "cordoned"
	Tainted          Name = "tainted"
	PodFailed        Name = "pod-failed"
	Evicted          Name = "evicted"
	PodGone          Name = "pod-gone"
	Drained          Name = "drained"
	DrainFailed      Name = "drain-failed"
	Rescheduled      Name = "rescheduled"
	Served           Name = "served"
	Remediating      Name = "remediating"
	Rebooted         Name = "rebooted"
	Remediated       Name = "remediated"
	RemediationFails Name = "remediation-failed"
	Untainted        Name = "untainted"
	Uncordoned       Name = "uncordoned"
	NotReady         Name = "not-ready"
	Ready            Name = "ready"
	BreakerTripped   Name = "breaker-tripped"
)

// Kind describes a reaction.
type Kind struct {
	Name Name
	// Verb is an alternative name for users, such as cordon.
	Verb    string
	Meaning string
}

// Kinds contains all reactions.
var Kinds = []Kind{
	{Detected, "detect", "a detector sets a condition of the node, or writes a warning Event about it"},
	{Cleared, "clear", "the condition of a detector is no longer True"},
	{DeviceUnhealthy, "", "the kubelet has fewer healthy devices to allocate, or reports a pod's device as unhealthy"},
	{DeviceHealthy, "", "the kubelet has more healthy devices to allocate"},
	{Decided, "decide", "NVSentinel decides to quarantine the node (annotation quarantineHealthEvent); in " +
		"NVSentinel's dry-run mode, nothing else follows"},
	{Cordoned, "cordon", "the node becomes unschedulable"},
	{Tainted, "taint", "the node gets a taint that Kubernetes itself does not set"},
	{PodFailed, "", "a container in a pod on the node fails, unless it is killed because its pod is being deleted"},
	{Evicted, "evict", "a pod on the node is told to terminate"},
	{PodGone, "", "a pod that was on the node no longer exists"},
	{Drained, "drain", "no pod that can be evicted remains on the node, or NVSentinel reports that the node is drained"},
	{DrainFailed, "", "NVSentinel gives up draining the node"},
	{Rescheduled, "reschedule", "a pod that replaces one on the node is assigned to another node"},
	{Served, "serve", "a pod on the node, or one that replaces it, is ready again"},
	{Remediating, "", "NVSentinel begins to repair the node"},
	{Rebooted, "reboot", "the node has a new boot ID"},
	{Remediated, "remediate", "NVSentinel has repaired the node"},
	{RemediationFails, "", "NVSentinel gives up repairing the node"},
	{Untainted, "untaint", "a taint that Kubernetes itself does not set is removed"},
	{Uncordoned, "uncordon", "the node becomes schedulable again"},
	{NotReady, "", "the node is no longer Ready"},
	{Ready, "", "the node is Ready again"},
	{BreakerTripped, "", "NVSentinel's circuit breaker opens; NVSentinel then ignores all events"},
}

// Parse returns the reaction with the given name or verb.
func Parse(text string) (Name, error) {
	var known []string
	for _, k := range Kinds {
		if text == string(k.Name) || k.Verb != "" && text == k.Verb {
			return k.Name, nil
		}
		known = append(known, string(k.Name))
		if k.Verb != "" {
			known = append(known, k.Verb)
		}
	}
	if near := suggest.Nearest(text, known); near != "" {
		return "", fmt.Errorf("unknown reaction %q; did you mean %s?", text, near)
	}
	return "", fmt.Errorf("unknown reaction %q: must be one of %s", text, strings.Join(known, ", "))
}

// Reaction is an action of the cluster or its components.
type Reaction struct {
	// Time is when the state arrived from the API server, according to this client's clock.
	Time time.Time `json:"time"`
	Name Name      `json:"name"`
	Node string    `json:"node,omitempty"`
	// Pod is NAMESPACE/NAME.
	Pod string    `json:"pod,omitempty"`
	UID types.UID `json:"-"` // the pod's UID; a StatefulSet reuses the name
	// By is the field manager or the component that caused the reaction; empty if the API server does not record it.
	// Who is the system to which the field manager or component belongs.
	By  string `json:"by,omitempty"`
	Who string `json:"who,omitempty"`
	// Text is what was observed, such as the condition, the taint, or the exit code. It is untrusted.
	Text string `json:"text,omitempty"`
	// Restarted means, for the reaction Served, that the pod existed before the fault and only its containers were
	// restarted.
	Restarted bool `json:"-"`
}

// Actor returns who caused the reaction, for display.
func (r Reaction) Actor() string {
	switch {
	case r.By == "":
		return ""
	case r.Who == "" || strings.EqualFold(r.Who, r.By):
		return r.By
	}
	return r.Who + " (" + r.By + ")"
}

// The known systems, with the names of their writers. A name may end with *.
var systems = []struct {
	name    string
	writers []string
}{
	{Ours, []string{"gpu-fault*", "kubectl-gpu-fault*", "kubectl-gpu_fault*", "gpufault.dev*"}},
	{"NVSentinel", []string{
		"fault-quarantine*", "node-drainer*", "fault-remediation*", "platform-connector*", "syslog-health-monitor*",
		"gpu-health-monitor*", "csp-health-monitor*", "health-events-analyzer*", "janitor*", "nvsentinel*",
	}},
	{"node-problem-detector", []string{"node-problem-detector*"}},
	{"gpud", []string{"gpud*"}},
	{"Karpenter", []string{"karpenter*"}},
	{"cluster-autoscaler", []string{"cluster-autoscaler*"}},
	{"draino", []string{"draino*"}},
	{"NVIDIA GPU operator", []string{"gpu-operator*", "nvidia-operator*"}},
	{"Kubernetes", []string{
		"kubelet*", "kube-controller-manager*", "kube-scheduler*", "kube-apiserver*", "cloud-controller-manager*",
		"node-controller", "taint-eviction-controller", "node-lifecycle-controller",
	}},
	{Person, []string{"kubectl*", "k9s*", "Mozilla*", "dashboard*"}},
}

// The actors whose reactions are not the cluster's own: a user at a command line, and this tool.
const (
	Person = "a person"
	Ours   = "gpu-fault"
)

// Who returns the system that a writer belongs to, or "" if it is unknown.
func Who(writer string) string {
	for _, s := range systems {
		if slices.ContainsFunc(s.writers, func(pattern string) bool { return Matches(pattern, writer) }) {
			return s.name
		}
	}
	return ""
}

// Matches reports whether a name matches a pattern, in which a * at the end stands for any characters. Case does not
// matter.
func Matches(pattern, name string) bool {
	pattern, name = strings.ToLower(pattern), strings.ToLower(name)
	if prefix, is := strings.CutSuffix(pattern, "*"); is {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// DoneBy reports whether the given actor caused the reaction. An empty name means the cluster itself: any actor other
// than a person and this tool. Otherwise, the name is the name of a system or of a writer, or "any" for all actors.
func (r Reaction) DoneBy(name string) bool {
	switch name {
	case "":
		return r.Who != Person && r.Who != Ours
	case "any":
		return true
	}
	return Matches(name, r.By) || Matches(name, r.Who)
}

package facts

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// RuntimeUnit returns the systemd unit of the node's container runtime.
func (n *Node) RuntimeUnit() string {
	unit := n.EmbeddedUnit()
	switch {
	case n.Distribution == MicroK8s:
		return "snap.microk8s.daemon-containerd"
	case n.Distribution == CanonicalK8s:
		return "snap.k8s.containerd"
	case n.IsCRIO():
		return "crio"
	}
	return cmp.Or(unit, "containerd")
}

// EmbeddedUnit returns the systemd unit of the program that embeds the kubelet in the node's distribution, or "".
func (n *Node) EmbeddedUnit() string {
	units := map[Distribution]string{
		K3s: "k3s-agent", RKE2: "rke2-agent", K0s: "k0sworker", MicroK8s: "snap.microk8s.daemon-kubelite",
	}
	if _, server := n.Labels["node-role.kubernetes.io/control-plane"]; server {
		units[K3s], units[RKE2], units[K0s] = "k3s", "rke2-server", "k0scontroller"
	}
	return units[n.Distribution]
}

// QuoteCondition returns a node condition as evidence.
func QuoteCondition(n *Node, c corev1.NodeCondition) finding.Evidence {
	return finding.Evidence{
		Source: fmt.Sprintf("%s .status.conditions[%s]=%s", n.Object(), c.Type, c.Status),
		Time:   c.LastTransitionTime.Time,
		Text:   words.Clip(strings.TrimSpace(c.Reason + ": " + c.Message)),
	}
}

// xidPatterns match XIDs in the output of agents: "Xid (PCI:0000:17:00): 79,", "NvidiaXID79Error", "ErrorCode:79".
var xidPatterns = []*regexp.Regexp{
	regexp.MustCompile(`(?i)Xid \([^)]*\): (\d{1,4})`), regexp.MustCompile(`(?i)Xid[ =:]{0,3}(\d{1,4})`),
	regexp.MustCompile(`ErrorCode:(\d{1,4})\b`),
}

// XIDsIn returns the XIDs in a condition's text.
func XIDsIn(text string) []int {
	var all []int
	for _, pattern := range xidPatterns {
		for _, m := range pattern.FindAllStringSubmatch(text, 64) {
			if code, err := strconv.Atoi(m[1]); err == nil && !slices.Contains(all, code) {
				all = append(all, code)
			}
		}
	}
	return all
}

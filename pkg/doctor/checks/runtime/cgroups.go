package runtime

import (
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

const (
	changedPods  = 2 // minimum number of pods on a node whose sandboxes were recreated
	changedTimes = 3 // minimum number of new sandboxes per pod
)

// checkSandboxesChange reports nodes on which pods die at random because the kubelet uses the systemd cgroup driver but
// no containerd handler does: systemd removes cgroups that it did not create. Many such nodes seem to work, so the
// check also requires that sandboxes have been recreated.
func checkSandboxesChange(f *facts.Facts, r *engine.Result) {
	for _, n := range f.Nodes {
		i := instance(n)
		if i == nil || i.Name != "containerd" || !strings.HasPrefix(strings.TrimPrefix(i.Release, "v"), "1.") ||
			n.View.Kubelet.CgroupDriver != "systemd" || len(i.Handlers) == 0 ||
			slices.ContainsFunc(i.Handlers, func(h runtimeview.Handler) bool { return h.Effective().Systemd() }) {
			continue // with containerd 2, the kubelet uses containerd's cgroup driver
		}
		var changed []finding.Evidence
		for _, pod := range n.Pods {
			for _, e := range f.EventsOfPod(pod) {
				if e.Reason == "SandboxChanged" && e.Count >= changedTimes &&
					f.Now.Sub(facts.EventTime(e)) < time.Hour {
					changed = append(changed, facts.Quote(e))
					break
				}
			}
		}
		if len(changed) < changedPods {
			continue
		}
		r.Add(finding.Finding{
			Object: n.Object(), Confidence: finding.Likely,
			Title: "pods die at random: the kubelet uses the systemd cgroup driver, but containerd uses cgroupfs",
			Evidence: append([]finding.Evidence{
				{Source: "nodes/" + n.Name + ": the kubelet's cgroupDriver", Text: "systemd"},
				{Source: "nodes/" + n.Name + ": containerd's handlers", Text: "SystemdCgroup = false"},
			}, changed[:changedPods]...),
			Fix: finding.Fix{
				Text: "set SystemdCgroup = true in the options of each containerd handler that uses runc, including " +
					"nvidia, and restart containerd. Do not change the kubelet, the driver or the pods",
			},
		})
	}
}

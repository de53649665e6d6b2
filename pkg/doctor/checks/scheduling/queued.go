package scheduling

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// queuedCheck returns the check of GPU work in the queues of batch schedulers.
func queuedCheck() engine.Check {
	return engine.Check{
		ID: "sched.queued", Symptom: engine.Unexplained, Layer: finding.LayerScheduling,
		Title: "GPU work waits in a queue of Kueue, Volcano or KAI Scheduler",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "Workloads, PodGroups and queues, their conditions and events; what their controllers log about them, and " +
			"why these fail",
		Why: "Work that waits in a queue often has no pods. It is compared with its queue, with the pods on the nodes, " +
			"and with the work that holds the quota. Work that only waits for quota that others use is Info.",
		Explains: []string{
			"sched.waiting", "sched.unschedulable", "sched.no-scheduler", "sched.none-advertised", "sched.all-in-use",
			"sched.insufficient-gpu", "sched.insufficient-other", "wl.message",
		},
		Sources: []string{"https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/", "https://volcano.sh/en/docs/queue/"},
		Run:     checkQueued,
	}
}

func checkQueued(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/queued") {
		return
	}
	var all []string
	for _, q := range f.Queued() {
		all = append(append(all, q.Pods...), q.Object.String())
	}
	fails := len(all) > 0 && checkPlacers(f, r, all)
	for _, q := range f.Queued() {
		if len(q.Said) == 0 || q.Unseen && fails {
			continue
		}
		found := finding.Finding{
			Object: q.Object, Title: "GPU work waits in a queue", Severity: finding.Error, Confidence: finding.Likely,
			Evidence: q.Said, PodScope: append(slices.Clone(q.Pods), q.Object.String()),
			Fix: finding.Fix{
				Text: "See the conditions of the work and of its queue, and the log of the controller that admits it.",
				Commands: []string{shell.Command("kubectl -n %s get %s %s -o yaml", q.Object.Namespace, q.Resource,
					q.Object.Name)},
			},
		}
		if q.Full {
			found.Title, found.Severity = "GPU work waits until its queue has enough quota", finding.Info
			found.Fix.Text = "Wait until other work of the queue ends, or raise the quota of the queue within what the " +
				"nodes have."
		}
		r.Add(found)
	}
}

// checkPlacers reports the programs that place GPU work and fail while some waits, and whether there are any.
func checkPlacers(f *facts.Facts, r *engine.Result, waits []string) (fails bool) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		troubles := f.Troubles(pod)
		if !facts.Schedules(pod.Name) || len(troubles) == 0 {
			continue
		}
		fails = true
		r.Add(finding.Finding{
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Title: "a program that places GPU work fails",
			Severity: finding.Error, Confidence: finding.Likely, Failed: facts.LastChange(pod), PodScope: waits,
			Crashed: troubles[0].Container, Evidence: []finding.Evidence{{
				Source: facts.PodObject(pod).String() + ", container " + troubles[0].Container + " .status",
				Time:   troubles[0].Time, Text: troubles[0].Text,
			}},
			Fix: finding.Fix{
				Text: "Until it runs, no work leaves its queues, and its webhooks may reject new pods. See its log for the " +
					"reason; a gate or setting that it names can be turned off.",
				Commands: []string{shell.Command("kubectl -n %s logs %s -c %s --previous --tail=60",
					pod.Namespace, pod.Name, troubles[0].Container)},
			},
		})
	}
	return fails
}

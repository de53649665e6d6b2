package scheduling

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// queuedCheck returns the check for GPU work that is waiting in the queues of batch schedulers.
func queuedCheck() engine.Check {
	return engine.Check{
		ID: "sched.queued", Symptom: engine.Unexplained, Layer: finding.LayerScheduling,
		Title: "GPU work is waiting in a queue of Kueue, Volcano or KAI Scheduler",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "Workloads, PodGroups and queues, with their conditions and events; the logs of their controllers, " +
			"and the reasons why controllers fail",
		Why: "Work that is waiting in a queue often has no pods. The work is compared with its queue, with the pods " +
			"on the nodes, and with the work that holds the quota. The finding is Info if the work is waiting only " +
			"for quota that others are using.",
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
		if len(q.Evidence) == 0 || q.Unprocessed && fails {
			continue
		}
		found := finding.Finding{
			Object: q.Object, Title: "GPU work is waiting in a " +
				"queue", Severity: finding.Error, Confidence: finding.Likely,
			Evidence: q.Evidence, PodScope: append(slices.Clone(q.Pods), q.Object.String()),
			Fix: finding.Fix{
				Text: "Check the conditions of the work and of its queue, and the log of the controller that admits work.",
				Commands: []string{shell.Command("kubectl -n %s get %s %s -o yaml", q.Object.Namespace, q.Resource,
					q.Object.Name)},
			},
		}
		if q.Full {
			found.Title = "GPU work is waiting until its queue has quota, or the nodes of its topology have room"
			found.Severity = finding.Info
			found.Fix.Text = "Wait until other work finishes. If the message names quota, you can raise it up to the " +
				"capacity of the nodes."
		}
		r.Add(found)
	}
}

// checkPlacers adds findings about the failing schedulers and queue controllers that the work is waiting for. It
// reports whether there are any.
func checkPlacers(f *facts.Facts, r *engine.Result, waits []string) bool {
	failing := f.FailingPlacers()
	for _, pod := range failing {
		trouble := f.Troubles(pod)[0]
		r.Add(finding.Finding{
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), PodScope: waits, Crashed: trouble.Container,
			Title:    "a scheduler or queue controller that GPU work is waiting for is failing",
			Severity: finding.Error, Confidence: finding.Likely, Failed: facts.LastChange(pod),
			Evidence: []finding.Evidence{{
				Source: facts.PodObject(pod).String() + ", container " + trouble.Container + " .status",
				Time:   trouble.Time, Text: trouble.Text,
			}},
			Fix: finding.Fix{
				Text: "Until the controller is running, no work leaves its queues, and its webhooks may reject new " +
					"pods. The controller's log contains the reason: correct the feature gate, setting or permission " +
					"that it names.",
				Commands: []string{shell.Command("kubectl -n %s logs %s -c %s --previous --tail=60",
					pod.Namespace, pod.Name, trouble.Container)},
			},
		})
	}
	return len(failing) > 0
}

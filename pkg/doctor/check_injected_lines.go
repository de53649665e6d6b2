package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// A line in a kernel log stays when the run that wrote it is over, and so do the conditions of detectors that believed
// it. Both are told as what they are, and not as a stranger's, nor as an error of the GPU.

// ownLine is a line of a run that is over, as the node's kernel log has it.
type ownLine struct {
	run    string
	record driverRecord
}

// ownCondition is a node condition that rests on a line of a run that is over.
type ownCondition struct {
	run   snapshot.Run
	codes []int
}

// xidRuns are this tool's runs whose lines may be in one node's kernel log.
type xidRuns struct{ open, over []snapshot.Run }

// findXIDRuns finds the runs whose lines may be in kernel logs, by node. A run may have a thousand nodes.
func (f *Facts) findXIDRuns() map[string]xidRuns {
	all := map[string]xidRuns{}
	for _, run := range f.Runs {
		if run.Fault != asXID && run.Fault != asScenario {
			continue
		}
		stands, _ := f.runState(run)
		evidence := map[string][]snapshot.RunEvidence{}
		for _, t := range run.Targets {
			if t.Kind == "Node" && t.Permanent && len(t.Evidence) > 0 {
				evidence[t.Name] = append(evidence[t.Name], t.Evidence...)
			}
		}
		for name, lines := range evidence {
			here := run
			here.Targets = []snapshot.Target{{Kind: "Node", Name: name, Permanent: true, Evidence: lines}}
			runs := all[name]
			if stands {
				runs.open = append(runs.open, here)
			} else {
				runs.over = append(runs.over, here)
			}
			all[name] = runs
		}
	}
	return all
}

// linesOn returns the proofs of the lines that a run wrote on a node.
func linesOn(run snapshot.Run, nodeName string) []snapshot.RunEvidence {
	var all []snapshot.RunEvidence
	for _, t := range run.Targets {
		if t.Kind == "Node" && t.Name == nodeName && t.Permanent {
			all = append(all, t.Evidence...)
		}
	}
	return all
}

// writer returns the run that is over and wrote a record; empty when none did. What the driver itself wrote is
// nobody's.
func (v *gpuView) writer(r driverRecord) string {
	if !r.userSpace {
		return ""
	}
	return writerAmong(v.runs.over, v.node.Name, r)
}

// writerAmong returns the run among some that wrote a record of a node; empty when none did.
func writerAmong(runs []snapshot.Run, nodeName string, r driverRecord) string {
	for _, run := range runs {
		if slices.ContainsFunc(
			linesOn(run, nodeName), func(e snapshot.RunEvidence) bool { return proves(e, r.KernelRecord) },
		) {
			return run.ID
		}
	}
	return ""
}

// ofOpenRun reports whether all that tells of an incident is lines that open runs wrote, or a detector's condition that
// rests on them.
func (v *gpuView) ofOpenRun(g sameKind) bool {
	return !g.contains(func(r driverRecord) bool { return !v.byOpenRun(r) })
}

func (v *gpuView) byOpenRun(r driverRecord) bool {
	if r.condition == "" {
		return writerAmong(v.runs.open, v.node.Name, r) != ""
	}
	i := slices.IndexFunc(v.node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == r.condition })
	if i < 0 {
		return false
	}
	_, ours := v.restsOnOpen(v.node.Status.Conditions[i])
	return ours
}

// rests finds the run that is over and on whose line a condition rests.
func (v *gpuView) rests(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.over, c)
}

// restsOnOpen finds the open run on whose line a condition rests.
func (v *gpuView) restsOnOpen(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.open, c)
}

// restsOn finds the run among some on whose line a condition rests: it names the same codes, of the same GPU if of any,
// since the run began, and the kernel log, where it was read, has no line of these codes that was not the runs'.
func (v *gpuView) restsOn(runs []snapshot.Run, c corev1.NodeCondition) (ownCondition, bool) {
	text := c.Reason + " " + c.Message
	codes := xidsIn(text)
	if len(codes) == 0 || slices.ContainsFunc(v.records, func(r driverRecord) bool {
		return r.condition == "" && slices.Contains(codes, r.event.Code) && writerAmong(runs, v.node.Name, r) == ""
	}) {
		return ownCondition{}, false
	}
	var at xid.PCI
	if m := conditionPCI.FindStringSubmatch(text); m != nil {
		if p, err := xid.ParsePCI(m[1]); err == nil {
			at = p
		}
	}
	for _, run := range runs {
		since := c.LastTransitionTime.Time
		if !since.IsZero() && since.Before(run.Created.Add(-clocksDiffer)) {
			continue
		}
		var wrote []int
		for _, e := range linesOn(run, v.node.Name) {
			for _, r := range driverRecords(api.KernelRecord{Text: e.Text}) {
				if at == (xid.PCI{}) || r.event.PCI == (xid.PCI{}) || at.String() == r.event.PCI.String() {
					wrote = append(wrote, r.event.Code)
				}
			}
		}
		if !slices.ContainsFunc(codes, func(code int) bool { return !slices.Contains(wrote, code) }) {
			return ownCondition{run, codes}, true
		}
	}
	return ownCondition{}, false
}

// clocksDiffer is how far the clocks of a client and of a node are trusted to differ.
const clocksDiffer = time.Minute

// finding tells of a condition that a test left.
func (o ownCondition) finding(n *Node, c corev1.NodeCondition) Finding {
	detector := detectorOf(c)
	f := Finding{
		Title: fmt.Sprintf(
			"the condition %s still tells of XID %s, which this tool wrote to the kernel log for a test that is over",
			c.Type, numbers(o.codes),
		), Object: n.Object(),
		Severity: Warning, Confidence: Likely, Evidence: []Evidence{quoteCondition(n, c), runEvidence(o.run)},
		Fix: Fix{Text: fmt.Sprintf("It is no error of a GPU: run %s wrote the line. Make the detector forget it. %s: %s.",
			o.run.ID, detector.Name, detector.Forget)},
	}
	for _, e := range linesOn(o.run, n.Name)[:1] {
		f.Evidence = append(f.Evidence,
			clipped(Evidence{Source: "node " + n.Name + ", " + e.Source, Time: e.Time, Text: e.Text}))
	}
	if detector.ID != xid.IDNPDKmsg {
		return f
	}
	f.Fix.Commands = []string{
		onHost(n.Name, "sudo systemctl restart node-problem-detector"),
		command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
	}
	f.Fix.Text += " It runs as a unit of the node, or as a pod, which is restarted by deleting it."
	for _, pod := range n.Pods {
		if strings.Contains(pod.Name, "problem-detector") {
			f.Fix.Commands = []string{restartPod(pod.Namespace, pod.Name)}
		}
	}
	return f
}

// detectorOf returns the detector that most likely set a condition: NVSentinel and the EKS agent are known by their
// words, others are rules of node-problem-detector.
func detectorOf(c corev1.NodeCondition) xid.Detector {
	id := xid.IDNPDKmsg
	switch text := c.Reason + " " + c.Message; {
	case strings.Contains(text, "ErrorCode:"):
		id = xid.IDNVSentinel
	case strings.Contains(text, "NvidiaXID"):
		id = xid.IDEKS
	}
	d, _ := xid.LookupDetector(id)
	return d
}

func numbers(codes []int) string {
	var all []string
	for _, code := range codes {
		all = append(all, fmt.Sprint(code))
	}
	return joined(all)
}

// checkOwnLines tells of lines in kernel logs whose runs are closed.
func (f *Facts) checkOwnLines(r *Result) {
	ours := map[string][]Evidence{} // by run
	where := map[string][]string{}
	for _, n := range f.Nodes {
		v := n.gpus()
		for _, line := range v.ours {
			if !slices.Contains(where[line.run], n.Name) {
				where[line.run] = append(where[line.run], n.Name)
			}
			if len(ours[line.run]) < few {
				ours[line.run] = append(ours[line.run], v.quote(line.record))
			}
		}
	}
	for _, run := range f.Runs {
		if run.Closed.IsZero() || len(where[run.ID]) == 0 {
			continue
		}
		r.Add(Finding{
			Object: Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), Severity: Info, Nodes: where[run.ID],
			Title:    "this tool wrote lines to a kernel log for a test that is over: they tell nothing about the GPU",
			Evidence: append([]Evidence{runEvidence(run)}, ours[run.ID]...),
			Fix: Fix{
				Text: "Nothing is to be done: a line stays until the node is started anew. A detector that has acted on it must be made to forget it.",
			},
		})
	}
}

package facts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// RunState reports whether a run's fault is in place; why says why not.
func (f *Facts) RunState(run snapshot.Run) (stands bool, why string) {
	switch {
	case !run.Closed.IsZero():
		return false, "it was closed at " + UntilClock(run.Closed)
	case run.Phase == "Planned":
		return false, "it was planned, and nothing was changed yet"
	case run.Phase == "Reverted" || len(run.Targets) == 0:
		return false, "nothing of it is in place any more"
	case !run.Until.IsZero() && !f.Now.Before(run.Until):
		return false, "its time was up at " + UntilClock(run.Until)
	}
	lines, gone := 0, 0
	for _, t := range run.Targets {
		n := f.Node(t.Name)
		if t.Kind != "Node" || !t.Permanent || n == nil || n.Host == nil || len(t.Evidence) == 0 {
			lines++ // nobody knows better
			continue
		}
		for _, e := range t.Evidence {
			lines++
			if _, there := KernelRecord(n.Host, e); !there {
				gone++
			}
		}
	}
	if gone == lines {
		return false, "its lines are no longer in the kernel log: the node was started anew, or the log has wrapped"
	}
	return true, ""
}

// KernelRecord finds the record of the node's kernel log that a run wrote.
func KernelRecord(host *api.Diagnosis, e snapshot.RunEvidence) (api.KernelRecord, bool) {
	i := slices.IndexFunc(host.KernelLog, func(r api.KernelRecord) bool { return proves(e, r) })
	if i < 0 {
		return api.KernelRecord{}, false
	}
	return host.KernelLog[i], true
}

// proves reports whether a record is the one that a run says it wrote: the same sequence number and text, or, without
// numbers, the same text.
func proves(e snapshot.RunEvidence, r api.KernelRecord) bool {
	_, after, known := strings.Cut(e.Source, "sequence ")
	digits := strings.TrimRight(after[:min(len(after), 20)], " .,:;)")
	if n := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); n >= 0 {
		digits = digits[:n]
	}
	sequence, err := strconv.ParseUint(digits, 10, 64)
	if known && err == nil && r.Sequence != 0 {
		return r.Sequence == sequence && strings.Contains(e.Text, strings.TrimSpace(r.Text))
	}
	return r.Text != "" && strings.Contains(e.Text, r.Text)
}

// UntilClock prints a time as people read it.
func UntilClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// RunEvidence quotes the record of a run.
func RunEvidence(run snapshot.Run) finding.Evidence {
	text := fmt.Sprintf("%s: %s (%s)", run.Fault, run.Summary, run.Phase)
	if run.By != "" {
		text += ", by " + run.By
	}
	switch {
	case !run.Closed.IsZero():
		text += ", over since " + UntilClock(run.Closed)
	case !run.Until.IsZero():
		text += ", until " + UntilClock(run.Until)
	}
	return finding.Clipped(finding.Evidence{Source: "record of run " + run.ID, Time: run.Created, Text: text})
}

// A line in a kernel log stays when the run that wrote it is over, and so do the conditions of detectors that believed
// it. Both are told as what they are, and not as a stranger's, nor as an error of the GPU.

// ownLine is a line of a run that is over, as the node's kernel log has it.
type ownLine struct {
	Run    string
	Record driverRecord
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
		if run.Fault != finding.AsXID && run.Fault != finding.AsScenario {
			continue
		}
		stands, _ := f.RunState(run)
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
func (v *GPUView) writer(r driverRecord) string {
	if !r.userSpace {
		return ""
	}
	return writerAmong(v.runs.over, v.Node.Name, r)
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
func (v *GPUView) ofOpenRun(g SameKind) bool {
	return !g.contains(func(r driverRecord) bool { return !v.byOpenRun(r) })
}

func (v *GPUView) byOpenRun(r driverRecord) bool {
	if r.Condition == "" {
		return writerAmong(v.runs.open, v.Node.Name, r) != ""
	}
	i := slices.IndexFunc(v.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == r.Condition })
	if i < 0 {
		return false
	}
	_, ours := v.RestsOnOpen(v.Node.Status.Conditions[i])
	return ours
}

// Rests finds the run that is over and on whose line a condition rests.
func (v *GPUView) Rests(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.over, c)
}

// RestsOnOpen finds the open run on whose line a condition rests.
func (v *GPUView) RestsOnOpen(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.open, c)
}

// restsOn finds the run among some on whose line a condition rests: it names the same codes, of the same GPU if of any,
// since the run began, and the kernel log, where it was read, has no line of these codes that was not the runs'.
func (v *GPUView) restsOn(runs []snapshot.Run, c corev1.NodeCondition) (ownCondition, bool) {
	text := c.Reason + " " + c.Message
	codes := XIDsIn(text)
	if len(codes) == 0 || slices.ContainsFunc(v.records, func(r driverRecord) bool {
		return r.Condition == "" && slices.Contains(codes, r.Event.Code) && writerAmong(runs, v.Node.Name, r) == ""
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
		for _, e := range linesOn(run, v.Node.Name) {
			for _, r := range DriverRecords(api.KernelRecord{Text: e.Text}) {
				if at == (xid.PCI{}) || r.Event.PCI == (xid.PCI{}) || at.String() == r.Event.PCI.String() {
					wrote = append(wrote, r.Event.Code)
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

// Finding tells of a condition that a test left.
func (o ownCondition) Finding(n *Node, c corev1.NodeCondition) finding.Finding {
	detector := detectorOf(c)
	f := finding.Finding{
		Title: fmt.Sprintf(
			"the condition %s still tells of XID %s, which this tool wrote to the kernel log for a test that is over",
			c.Type, words.Numbers(o.codes),
		), Object: n.Object(),
		Severity: finding.Warning, Confidence: finding.Likely,
		Evidence: []finding.Evidence{QuoteCondition(n, c), RunEvidence(o.run)},
		Fix: finding.Fix{Text: fmt.Sprintf("It is no error of a GPU: run %s wrote the line. Make the detector forget it. %s: %s.",
			o.run.ID, detector.Name, detector.Forget)},
	}
	for _, e := range linesOn(o.run, n.Name)[:1] {
		f.Evidence = append(f.Evidence,
			finding.Clipped(finding.Evidence{Source: "node " + n.Name + ", " + e.Source, Time: e.Time, Text: e.Text}))
	}
	if detector.ID != xid.IDNPDKmsg {
		return f
	}
	f.Fix.Commands = []string{
		shell.OnHost(n.Name, "sudo systemctl restart node-problem-detector"),
		shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
	}
	f.Fix.Text += " It runs as a unit of the node, or as a pod, which is restarted by deleting it."
	for _, pod := range n.Pods {
		if strings.Contains(pod.Name, "problem-detector") {
			f.Fix.Commands = []string{RestartPod(pod.Namespace, pod.Name)}
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

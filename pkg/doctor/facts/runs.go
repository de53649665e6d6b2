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

// RunState reports whether a run's fault is active, and returns the reason if it is not.
func (f *Facts) RunState(run snapshot.Run) (stands bool, why string) {
	switch {
	case !run.Closed.IsZero():
		return false, "closed at " + UntilClock(run.Closed)
	case run.Phase == "Planned":
		return false, "the run is planned, and nothing has been changed yet"
	case run.Phase == "Reverted" || len(run.Targets) == 0:
		return false, "its changes are no longer in place"
	case !run.Until.IsZero() && !f.Now.Before(run.Until):
		return false, "expired at " + UntilClock(run.Until)
	}
	lines, gone := 0, 0
	for _, t := range run.Targets {
		n := f.Node(t.Name)
		if t.Kind != "Node" || !t.Permanent || n == nil || n.Host == nil || len(t.Evidence) == 0 {
			lines++ // the state on the node is unknown, so assume that the line exists
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
		return false, "its lines are no longer in the kernel log: the node was rebooted, or the log has wrapped"
	}
	return true, ""
}

// KernelRecord returns the record that a run wrote to the node's kernel log.
func KernelRecord(host *api.Diagnosis, e snapshot.RunEvidence) (api.KernelRecord, bool) {
	i := slices.IndexFunc(host.KernelLog, func(r api.KernelRecord) bool { return proves(e, r) })
	if i < 0 {
		return api.KernelRecord{}, false
	}
	return host.KernelLog[i], true
}

// proves reports whether a record is the one that a run reported: the sequence number and text match or, if sequence
// numbers are unknown, only the text.
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

// UntilClock formats a time in UTC, to the minute.
func UntilClock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// RunEvidence returns a run's record as evidence.
func RunEvidence(run snapshot.Run) finding.Evidence {
	text := fmt.Sprintf("%s: %s (%s)", run.Fault, run.Summary, run.Phase)
	if run.By != "" {
		text += ", by " + run.By
	}
	switch {
	case !run.Closed.IsZero():
		text += ", closed at " + UntilClock(run.Closed)
	case !run.Until.IsZero():
		text += ", until " + UntilClock(run.Until)
	}
	return finding.Clipped(finding.Evidence{Source: "record of run " + run.ID, Time: run.Created, Text: text})
}

// Lines in a kernel log, and conditions that detectors set because of them, remain after the run that wrote the lines
// has been closed. Both are reported as leftovers from a run, not as foreign lines or GPU errors.

// ownLine is a line in the node's kernel log that a completed run wrote.
type ownLine struct {
	Run    string
	Record driverRecord
}

// ownCondition is a node condition caused by a line from a completed run.
type ownCondition struct {
	run   snapshot.Run
	codes []int
}

// xidRuns are this tool's runs that may have lines in one node's kernel log.
type xidRuns struct{ open, over []snapshot.Run }

// findXIDRuns returns the runs that may have lines in kernel logs, by node. A run may have a thousand nodes.
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

// linesOn returns the evidence in a run's record about the lines that the run wrote to a node's kernel log.
func linesOn(run snapshot.Run, nodeName string) []snapshot.RunEvidence {
	var all []snapshot.RunEvidence
	for _, t := range run.Targets {
		if t.Kind == "Node" && t.Name == nodeName && t.Permanent {
			all = append(all, t.Evidence...)
		}
	}
	return all
}

// writer returns the completed run that wrote a record, or "" if there is none. The driver's own records have no
// writer.
func (v *GPUView) writer(r driverRecord) string {
	if !r.userSpace {
		return ""
	}
	return writerAmong(v.runs.over, v.Node.Name, r)
}

// writerAmong returns the ID of the run that wrote a record on a node, or "" if none of the runs did.
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

// ofOpenRun reports whether the only evidence of an incident is lines written by open runs, or detector conditions
// caused by such lines.
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

// Rests returns the condition's cause if a line from a completed run caused the condition.
func (v *GPUView) Rests(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.over, c)
}

// RestsOnOpen returns the condition's cause if a line from an open run caused the condition.
func (v *GPUView) RestsOnOpen(c corev1.NodeCondition) (ownCondition, bool) {
	return v.restsOn(v.runs.open, c)
}

// restsOn returns the condition's cause if one of the runs caused the condition. A run is the cause if the condition
// has been set since the run began and names only codes that the run wrote, for the same GPU if the condition names
// one. If the kernel log was read, it must contain these codes only in lines from the runs.
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

// clocksDiffer is the maximum assumed difference between a client's clock and a node's clock.
const clocksDiffer = time.Minute

// Finding returns the finding about a condition that remains from an earlier run.
func (o ownCondition) Finding(n *Node, c corev1.NodeCondition) finding.Finding {
	detector := detectorOf(c)
	f := finding.Finding{
		Title: fmt.Sprintf(
			"the condition %s still reports XID %s, which this tool wrote to the kernel log for a completed test",
			c.Type, words.Numbers(o.codes),
		), Object: n.Object(),
		Severity: finding.Warning, Confidence: finding.Likely,
		Evidence: []finding.Evidence{QuoteCondition(n, c), RunEvidence(o.run)},
		Fix: finding.Fix{Text: fmt.Sprintf("This is not a GPU error: run %s wrote the line. Clear the line from the "+
			"detector. %s: %s.",
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
	f.Fix.Text += " The detector runs as a systemd unit or as a pod. To restart the pod, delete it."
	for _, pod := range n.Pods {
		if strings.Contains(pod.Name, "problem-detector") {
			f.Fix.Commands = []string{RestartPod(pod.Namespace, pod.Name)}
		}
	}
	return f
}

// detectorOf returns the detector that most likely set a condition. NVSentinel and the EKS agent are recognized by
// their wording; other conditions are attributed to node-problem-detector rules.
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

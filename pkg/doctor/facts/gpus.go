package facts

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// IsNVSwitch reports whether a PCI device is an NVSwitch: a bridge of class "other".
func IsNVSwitch(d api.PCIDevice) bool {
	return strings.HasPrefix(strings.TrimPrefix(d.Class, "0x"), "0680")
}

// GPUView is the state of a node's GPUs according to nvidia-smi and the kernel log.
type GPUView struct {
	Node *Node
	// SMI is nil if nvidia-smi did not run or its output cannot be parsed. In that case, SMIError contains the output.
	SMI      *nvidiasmi.Log
	SMIError string

	records   []driverRecord // from the kernel log, oldest first
	Incidents []incident     // newest first
	Strangers []driverRecord // about GPUs that the node does not have
	// Ours contains lines that this tool's completed runs wrote. The other fields exclude these lines.
	Ours []ownLine
	runs xidRuns
	// loaded is the uptime at which the driver was last loaded, according to the kernel log, or negative if unknown.
	loaded time.Duration
}

// driverRecord is a kernel log record in which the driver reports an error.
type driverRecord struct {
	api.KernelRecord
	Event xid.Event
	// userSpace is true if the record was written by a program, such as a fault injector or a test, and not by the
	// kernel.
	userSpace bool
	// Condition is the node condition that quotes the record, if the record is not from the kernel log.
	Condition corev1.NodeConditionType
}

// incident is one failure of one GPU or NVSwitch: a primary record and the records that accompany it.
type incident struct {
	Primary driverRecord
	along   []driverRecord
}

// viewGPUs returns the view of a node's GPUs. runs are this tool's runs that wrote to the node's kernel log.
func viewGPUs(n *Node, runs xidRuns) *GPUView {
	v := &GPUView{Node: n, loaded: -1, runs: runs}
	if n.Host != nil {
		v.SMIError = n.Host.Probe.SMIError
		if n.Host.SMI != "" {
			log, err := nvidiasmi.Parse([]byte(n.Host.SMI))
			if log != nil && (len(log.GPUs) > 0 || log.Driver != "") {
				v.SMI = log
			}
			if log != nil {
				v.SMIError = strings.TrimSpace(v.SMIError + "\n" + strings.Join(log.Notes, "\n"))
			}
			if err != nil && v.SMIError == "" {
				v.SMIError = err.Error()
			}
		}
		v.readKernelLog(n.Host)
	}
	if n.Host == nil || len(n.Host.KernelLog) == 0 {
		v.readConditions()
	}
	v.Incidents = incidents(v.records)
	return v
}

// driverLoads is the beginning of the message that the driver logs when it is loaded.
const driverLoads = "NVRM: loading NVIDIA UNIX"

func (v *GPUView) readKernelLog(host *api.Diagnosis) {
	known := knownDevices(host)
	for _, k := range host.KernelLog {
		if strings.Contains(k.Text, driverLoads) {
			v.loaded = k.Uptime
		}
		for _, record := range DriverRecords(k) {
			if run := v.writer(record); run != "" {
				v.Ours = append(v.Ours, ownLine{run, record})
				continue
			}
			if at := record.Event.PCI; (record.Event.Kind == xid.KindXID || record.Event.Kind == xid.KindFallenOff) &&
				len(known) > 0 && !known[at.String()] {
				v.Strangers = append(v.Strangers, record)
				continue
			}
			v.records = append(v.records, record)
		}
	}
}

// DriverRecords returns the XIDs and similar errors in a kernel log record, which may span several lines.
func DriverRecords(k api.KernelRecord) []driverRecord {
	text := strings.ReplaceAll(k.Text, `\x0a`, "\n")
	e, prefix, err := xid.Parse(text)
	if errors.Is(err, xid.ErrNotDriver) || err != nil {
		return nil
	}
	byUser := k.Priority >= 8 || prefix.Form == xid.FormKernel || prefix.Form == xid.FormBracket
	record := driverRecord{KernelRecord: k, Event: e, userSpace: byUser}
	switch {
	case e.Kind == xid.KindXID, e.Kind == xid.KindSXid, e.Kind == xid.KindFallenOff:
		return []driverRecord{record}
	case e.Kind == xid.KindGPU && strings.Contains(e.Body, "fallen off the bus"):
		record.Event = xid.Event{Kind: xid.KindFallenOff, PCI: e.PCI}
		return []driverRecord{record}
	case e.Kind == xid.KindNote && strings.Contains(e.Body, "GSP RM heartbeat timed out"):
		record.Event = xid.Event{Kind: xid.KindXID, Code: 120}
		return []driverRecord{record}
	}
	return nil
}

// knownDevices returns the node's GPUs and NVSwitches, by address without the PCI function, or an empty map if they are
// unknown.
func knownDevices(host *api.Diagnosis) map[string]bool {
	known := map[string]bool{}
	add := func(address string) {
		if p, err := xid.ParsePCI(address); err == nil {
			known[p.String()] = true
		}
	}
	for _, g := range host.Info.GPUs {
		add(g.PCI)
	}
	for _, d := range host.Probe.PCI {
		add(d.Address)
	}
	return known
}

var (
	// conditionCode matches codes in the messages and reasons of conditions set by NVSentinel ("ErrorCode:79
	// PCI:0000:17:00"), EKS (NvidiaXID79Error), gpud and NPD.
	conditionCode = regexp.MustCompile(
		`(?i)(?:ErrorCode:|NvidiaXID|\bXID(?: \(PCI:[0-9a-f:.]+\))?:? ?)(\d{1,3})(?:\D|$)`,
	)
	conditionPCI = regexp.MustCompile(`(?i)PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})`)
)

// readConditions extracts codes from the node conditions that node-problem-detector, NVSentinel and the EKS agent set.
// Use it only for nodes whose kernel log was not read: the kernel log is more precise, and a condition with a code that
// is missing from the log is outdated.
func (v *GPUView) readConditions() {
	for _, c := range v.Node.Status.Conditions {
		if _, ours := v.Rests(c); ours || !isProblem(c) {
			continue
		}
		text := c.Reason + " " + c.Message
		for _, m := range conditionCode.FindAllStringSubmatch(text, 8) {
			code := 0
			if _, err := fmt.Sscan(m[1], &code); err != nil || code == 0 {
				continue
			}
			event := xid.Event{Kind: xid.KindXID, Code: code}
			if at := conditionPCI.FindStringSubmatch(text); at != nil {
				if p, err := xid.ParsePCI(at[1]); err == nil {
					event.PCI = p
				}
			}
			if slices.ContainsFunc(v.records, func(r driverRecord) bool { return r.Event.Code == code }) {
				continue // several conditions may report the same code
			}
			v.records = append(v.records, driverRecord{
				KernelRecord: api.KernelRecord{
					Time: c.LastTransitionTime.Time, Text: strings.TrimSpace(c.Reason + ": " + c.Message),
				},
				Event: event, Condition: c.Type,
			})
		}
	}
}

// isProblem reports whether a condition that the kubelet did not set indicates a problem. Most such conditions indicate
// a problem if they are true. Conditions whose names refer to health indicate a problem if they are false.
func isProblem(c corev1.NodeCondition) bool {
	switch c.Type {
	case corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeNetworkUnavailable:
		return false
	}
	if strings.HasSuffix(string(c.Type), "Ready") || strings.HasSuffix(string(c.Type), "Healthy") {
		return c.Status == corev1.ConditionFalse
	}
	return c.Status == corev1.ConditionTrue
}

// evidence quotes the newest record, the records that accompany it, and the oldest record.
func (v *GPUView) evidence(g SameKind) []finding.Evidence {
	newest, oldest := g.Incidents[0], g.Incidents[len(g.Incidents)-1]
	all := []finding.Evidence{v.Quote(newest.Primary)}
	seen := map[string]bool{fmt.Sprint(newest.Primary.Event.Kind, newest.Primary.Event.Code): true}
	for _, r := range newest.along {
		if key := fmt.Sprint(r.Event.Kind, r.Event.Code); !seen[key] && len(all) < 4 {
			seen[key] = true
			all = append(all, v.Quote(r))
		}
	}
	if len(g.Incidents) > 1 {
		all = append(all, v.Quote(oldest.Primary))
	}
	return all
}

// Quote returns a record as evidence.
func (v *GPUView) Quote(r driverRecord) finding.Evidence {
	source := fmt.Sprintf("kernel log of node %s, sequence %d", v.Node.Name, r.Sequence)
	switch {
	case r.Condition != "":
		source = fmt.Sprintf("Node %s .status.conditions[%s]", v.Node.Name, r.Condition)
	case r.userSpace:
		source += fmt.Sprintf(", priority %d: written from user space, not by the driver", r.Priority)
	}
	return finding.Evidence{Source: source, Time: r.Time, Text: words.Clip(r.Text)}
}

// QuoteKernel returns as evidence a kernel log record that is not a driver report.
func (n *Node) QuoteKernel(k api.KernelRecord) finding.Evidence {
	return finding.Evidence{
		Source: fmt.Sprintf("kernel log of node %s, sequence %d", n.Name, k.Sequence), Time: k.Time,
		Text: words.Clip(k.Text),
	}
}

// GPUAt returns the GPU at a PCI address according to nvidia-smi, or nil if nvidia-smi does not list it.
func (v *GPUView) GPUAt(p xid.PCI) *nvidiasmi.GPU {
	if v.SMI == nil {
		return nil
	}
	for i, g := range v.SMI.GPUs {
		if g.PCI != nil && g.PCI.String() == p.String() {
			return &v.SMI.GPUs[i]
		}
	}
	return nil
}

// Answers reports whether nvidia-smi lists the GPU and the GPU responds.
func (v *GPUView) Answers(p xid.PCI) bool {
	g := v.GPUAt(p)
	return g != nil && !g.Lost() && g.MemoryTotal != nil
}

// Over reports whether the incidents happened before the driver was last loaded and the GPU has responded since.
func (v *GPUView) Over(g SameKind) bool {
	newest := g.Incidents[0].Primary
	return newest.Condition == "" && v.loaded >= 0 && newest.Uptime < v.loaded && v.Answers(g.Event.PCI)
}

// pastAfter is the minimum age of a past incident on a GPU that has recovered.
const pastAfter = 24 * time.Hour

// Past reports whether the incidents happened more than a day ago, by the node's clock, and nvidia-smi shows no
// remaining problem.
func (v *GPUView) Past(g SameKind) bool {
	newest := g.Incidents[0].Primary
	if newest.Condition != "" || v.Node.Host == nil || !v.healthy(g.Event) {
		return false
	}
	probe := v.Node.Host.Probe
	switch {
	case probe.Uptime > 0 && newest.Uptime > 0:
		return probe.Uptime-newest.Uptime > pastAfter
	case !probe.Time.IsZero() && !newest.Time.IsZero():
		return probe.Time.Sub(newest.Time) > pastAfter
	}
	return false
}

// healthy reports whether nvidia-smi lists the GPU that an event names and shows that the GPU does not need recovery.
// An event that does not name one of the node's GPUs, for example an NVSwitch or GSP event, may be about any of them.
func (v *GPUView) healthy(e xid.Event) bool {
	if v.SMI == nil || len(v.SMI.GPUs) == 0 || v.Node.Host == nil || len(v.SMI.GPUs) < len(GPUAddresses(v.Node)) {
		return false
	}
	if g := v.GPUAt(e.PCI); g != nil {
		return v.needsNothing(*g)
	}
	named := e.PCI != (xid.PCI{}) && e.Kind != xid.KindSXid
	return !named && !slices.ContainsFunc(v.SMI.GPUs, func(g nvidiasmi.GPU) bool { return !v.needsNothing(g) })
}

func (v *GPUView) needsNothing(g nvidiasmi.GPU) bool {
	need, _ := Recovery(g.RecoveryAction)
	_, remaps := RemapFinding(v.Node, g)
	return !g.Lost() && need == "" && !remaps && !Yes(g.ResetRequired) && !Yes(g.DrainAndReset)
}

// times returns when the incidents happened, or nil if the time of any record is unknown.
func (v *GPUView) times(g SameKind) []time.Time {
	var all []time.Time
	for _, in := range g.Incidents {
		if in.Primary.Time.IsZero() {
			return nil
		}
		all = append(all, in.Primary.Time)
	}
	return all
}

// GPUObject returns a GPU as the object of a finding, for example "GPU node-a/0000:17:00".
func GPUObject(n *Node, p xid.PCI) finding.Object {
	if p == (xid.PCI{}) {
		return n.Object()
	}
	return finding.Object{Kind: "GPU", Name: n.Name + "/" + p.String()}
}

// SMIObject returns a GPU listed by nvidia-smi as the object of a finding.
func SMIObject(n *Node, g nvidiasmi.GPU) finding.Object {
	if g.PCI != nil {
		return GPUObject(n, *g.PCI)
	}
	return finding.Object{Kind: "GPU", Name: n.Name + "/" + g.ID}
}

// SMIEvidence returns an element of nvidia-smi's XML output as evidence.
func SMIEvidence(n *Node, g nvidiasmi.GPU, element, value string) finding.Evidence {
	return finding.Evidence{
		Source: fmt.Sprintf("nvidia-smi -q -x on node %s, gpu %s", n.Name, g.ID),
		Text:   fmt.Sprintf("<%s>%s</%s>", element, value, element),
	}
}

// Yes reports whether b is set and true.
func Yes(b *bool) bool { return b != nil && *b }

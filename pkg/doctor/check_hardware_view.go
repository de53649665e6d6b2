package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// gpuView is what nvidia-smi and the kernel log say about one node's GPUs.
type gpuView struct {
	node *Node
	// smi is nil when nvidia-smi was not run, or said nothing that can be read; smiError then says what it said.
	smi      *nvidiasmi.Log
	smiError string

	records   []driverRecord // of the kernel log, the oldest first
	incidents []incident     // the newest first
	strangers []driverRecord // about GPUs that the node does not have
	// ours are lines of this tool's runs that are over; they are in none of the others.
	ours []ownLine
	runs xidRuns
	// loaded is when the driver was loaded last, as far as the kernel log says; negative when it does not.
	loaded time.Duration
}

// driverRecord is a record of the kernel log in which the driver reports something.
type driverRecord struct {
	api.KernelRecord
	event xid.Event
	// userSpace says that not the kernel wrote it: a program that injects faults, or a test.
	userSpace bool
	// condition is the node condition that quotes it, when it does not come from the kernel log.
	condition corev1.NodeConditionType
}

// incident is one thing that went wrong with one GPU or NVSwitch: a record that says what, and those that go along with
// it.
type incident struct {
	primary driverRecord
	along   []driverRecord
}

// viewGPUs reads a node. runs are this tool's that wrote to its kernel log.
func viewGPUs(n *Node, runs xidRuns) *gpuView {
	v := &gpuView{node: n, loaded: -1, runs: runs}
	if n.Host != nil {
		v.smiError = n.Host.Probe.SMIError
		if n.Host.SMI != "" {
			log, err := nvidiasmi.Parse([]byte(n.Host.SMI))
			if log != nil && (len(log.GPUs) > 0 || log.Driver != "") {
				v.smi = log
			}
			if log != nil {
				v.smiError = strings.TrimSpace(v.smiError + "\n" + strings.Join(log.Notes, "\n"))
			}
			if err != nil && v.smiError == "" {
				v.smiError = err.Error()
			}
		}
		v.readKernelLog(n.Host)
	}
	if n.Host == nil || len(n.Host.KernelLog) == 0 {
		v.readConditions()
	}
	v.incidents = incidents(v.records)
	return v
}

// driverLoads is how the driver introduces itself when it is loaded.
const driverLoads = "NVRM: loading NVIDIA UNIX"

func (v *gpuView) readKernelLog(host *api.Diagnosis) {
	known := knownDevices(host)
	for _, k := range host.KernelLog {
		if strings.Contains(k.Text, driverLoads) {
			v.loaded = k.Uptime
		}
		for _, record := range driverRecords(k) {
			if run := v.writer(record); run != "" {
				v.ours = append(v.ours, ownLine{run, record})
				continue
			}
			if at := record.event.PCI; (record.event.Kind == xid.KindXID || record.event.Kind == xid.KindFallenOff) &&
				len(known) > 0 && !known[at.String()] {
				v.strangers = append(v.strangers, record)
				continue
			}
			v.records = append(v.records, record)
		}
	}
}

// driverRecords returns the XIDs and their like in one record, which may have several lines.
func driverRecords(k api.KernelRecord) []driverRecord {
	text := strings.ReplaceAll(k.Text, `\x0a`, "\n")
	e, prefix, err := xid.Parse(text)
	if errors.Is(err, xid.ErrNotDriver) || err != nil {
		return nil
	}
	byUser := k.Priority >= 8 || prefix.Form == xid.FormKernel || prefix.Form == xid.FormBracket
	record := driverRecord{KernelRecord: k, event: e, userSpace: byUser}
	switch {
	case e.Kind == xid.KindXID, e.Kind == xid.KindSXid, e.Kind == xid.KindFallenOff:
		return []driverRecord{record}
	case e.Kind == xid.KindGPU && strings.Contains(e.Body, "fallen off the bus"):
		record.event = xid.Event{Kind: xid.KindFallenOff, PCI: e.PCI}
		return []driverRecord{record}
	case e.Kind == xid.KindNote && strings.Contains(e.Body, "GSP RM heartbeat timed out"):
		record.event = xid.Event{Kind: xid.KindXID, Code: 120}
		return []driverRecord{record}
	}
	return nil
}

// knownDevices returns the GPUs and NVSwitches that the node has, by address without function; empty when that was not
// read.
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
	// conditionCode finds codes in the messages and reasons of NVSentinel ("ErrorCode:79 PCI:0000:17:00"), EKS
	// (NvidiaXID79Error), gpud and NPD.
	conditionCode = regexp.MustCompile(
		`(?i)(?:ErrorCode:|NvidiaXID|\bXID(?: \(PCI:[0-9a-f:.]+\))?:? ?)(\d{1,3})(?:\D|$)`,
	)
	conditionPCI = regexp.MustCompile(`(?i)PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})`)
)

// readConditions takes codes out of what node problem detectors, NVSentinel and the EKS agent say of the node. It is
// for nodes whose kernel log was not read: one that was tells it better, and when it does not have the code, the
// condition is old.
func (v *gpuView) readConditions() {
	for _, c := range v.node.Status.Conditions {
		if _, ours := v.rests(c); ours || !tellsProblem(c) {
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
			if slices.ContainsFunc(v.records, func(r driverRecord) bool { return r.event.Code == code }) {
				continue // several conditions tell the same
			}
			v.records = append(v.records, driverRecord{
				KernelRecord: api.KernelRecord{
					Time: c.LastTransitionTime.Time, Text: strings.TrimSpace(c.Reason + ": " + c.Message),
				},
				event: event, condition: c.Type,
			})
		}
	}
}

// tellsProblem reports whether a condition that is not the kubelet's own says that something is wrong. Most are true
// then; those that are named for health are false.
func tellsProblem(c corev1.NodeCondition) bool {
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

// window is how far apart records of one incident are: real cascades take a few seconds, and a GSP timeout is told
// again after 45.
const window = time.Minute

// mostRecords is how many of the driver's records of one node are looked at: the newest.
const mostRecords = 4000

// incidents groups records: those that say most come first, and take what goes along with them on the same GPU.
func incidents(records []driverRecord) []incident {
	records = slices.Clone(records[max(0, len(records)-mostRecords):])
	slices.SortStableFunc(records, func(a, b driverRecord) int { return cmp.Compare(a.Uptime, b.Uptime) })
	order, weights := make([]int, len(records)), make([]int, len(records))
	for i := range order {
		order[i], weights[i] = i, weight(records[i].event)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weights[a], weights[b]) })
	taken := make([]bool, len(records))
	var all []incident
	for _, i := range order {
		if taken[i] {
			continue
		}
		taken[i] = true
		in := incident{primary: records[i]}
		first, _ := slices.BinarySearchFunc(records, in.primary.Uptime-window,
			func(r driverRecord, at time.Duration) int { return cmp.Compare(r.Uptime, at) })
		for j := first; j < len(records) && records[j].Uptime <= in.primary.Uptime+window; j++ {
			if !taken[j] && in.primary.takes(records[j]) {
				taken[j] = true
				in.along = append(in.along, records[j])
			}
		}
		all = append(all, in)
	}
	slices.SortStableFunc(all, func(a, b incident) int {
		return cmp.Or(cmp.Compare(b.primary.Uptime, a.primary.Uptime), b.primary.Time.Compare(a.primary.Time))
	})
	return all
}

// takes reports whether another record, of the same minute, belongs to the incident of this one. Conditions do not tell
// of which minute a code is, nor always of which GPU.
func (r driverRecord) takes(other driverRecord) bool {
	a, b := r.event.PCI, other.event.PCI
	a.Function, b.Function = 0, 0
	return (a == b || a == (xid.PCI{}) || b == (xid.PCI{})) && follows(r.event, other.event)
}

// weight orders events by how much they tell; the least is told first.
func weight(e xid.Event) int {
	switch {
	case e.Kind == xid.KindXID && e.Code == 79:
		return 0
	case e.Kind == xid.KindFallenOff:
		return 1
	case e.Kind == xid.KindSXid:
		return 7
	}
	for i, codes := range [][]int{{64}, {48, 95}, {137}, {94, 140, 171, 172}, {119, 120}, nvlinkCodes(), {63}} {
		if slices.Contains(codes, e.Code) {
			return 2 + i
		}
	}
	switch code, known := xid.Lookup(e.Code); {
	case e.Code == 154:
		return 13
	case e.Code == 45:
		return 12
	case e.Code == 43:
		return 11
	case known && code.Class == "app":
		return 10
	}
	return 9
}

// follows reports whether an event goes along with another that happened to the same GPU in the same minute. Sources:
// NVIDIA's XID catalog, and the groups of real logs in pkg/xid.
func follows(primary, other xid.Event) bool {
	if other.Kind == xid.KindFallenOff {
		return primary.Kind == xid.KindFallenOff || primary.Code == 79
	}
	if other.Kind == xid.KindSXid || primary.Kind == xid.KindSXid {
		return primary.Kind == other.Kind && primary.Code == other.Code
	}
	if other.Code == primary.Code || slices.Contains([]int{43, 45, 154}, other.Code) {
		return true
	}
	if primary.Kind == xid.KindFallenOff {
		return true // nothing that such a GPU says is worth anything
	}
	sympathetic := []int{}
	switch {
	case primary.Code == 79:
		return true
	case primary.Code == 64:
		sympathetic = []int{48, 62, 63, 92, 94, 95, 140, 171, 172}
	case slices.Contains(eccCodes(), primary.Code):
		sympathetic = []int{13, 31, 48, 62, 63, 92, 94, 95, 140, 171, 172}
	case primary.Code == 137:
		sympathetic = []int{94, 108}
	case primary.Code == 119, primary.Code == 120:
		sympathetic = []int{62, 109, 119, 120}
	case slices.Contains(nvlinkCodes(), primary.Code):
		sympathetic = append(nvlinkCodes(), 137, 155)
	}
	return slices.Contains(sympathetic, other.Code)
}

func eccCodes() []int    { return []int{48, 94, 95} }
func remapCodes() []int  { return []int{63, 64} }
func gspCodes() []int    { return []int{119, 120} }
func nvlinkCodes() []int { return []int{74, 144, 145, 146, 147, 148, 149, 150} }

// ownerOfCode returns the check that tells of an event, so that each is told once.
func ownerOfCode(e xid.Event) string {
	switch {
	case e.Kind == xid.KindFallenOff, e.Code == 79 && e.Kind == xid.KindXID:
		return "hw.gpu-lost"
	case e.Kind == xid.KindSXid, slices.Contains(nvlinkCodes(), e.Code):
		return "hw.nvlink"
	case slices.Contains(gspCodes(), e.Code):
		return "drv.gsp"
	case slices.Contains(eccCodes(), e.Code):
		return "hw.ecc"
	case slices.Contains(remapCodes(), e.Code):
		return "hw.row-remap"
	}
	return "hw.xid-recent"
}

// of returns the incidents that a check tells of.
func (v *gpuView) of(check string) []incident {
	return slices.DeleteFunc(slices.Clone(v.incidents),
		func(in incident) bool { return ownerOfCode(in.primary.event) != check })
}

// sameKind are incidents of one code on one GPU, the newest first.
type sameKind struct {
	event     xid.Event
	incidents []incident
}

func groupIncidents(all []incident) []sameKind {
	var groups []sameKind
	for _, in := range all {
		i := slices.IndexFunc(groups, func(g sameKind) bool {
			return g.event.Kind == in.primary.event.Kind && g.event.Code == in.primary.event.Code &&
				g.event.PCI == in.primary.event.PCI
		})
		if i < 0 {
			groups = append(groups, sameKind{event: in.primary.event})
			i = len(groups) - 1
		}
		groups[i].incidents = append(groups[i].incidents, in)
	}
	return groups
}

// count returns how many records there are, with those that only go along left out.
func (g sameKind) count() int {
	n := 0
	for _, in := range g.incidents {
		n++
		for _, r := range in.along {
			if r.event.Kind == g.event.Kind && r.event.Code == g.event.Code {
				n++
			}
		}
	}
	return n
}

// fromUserSpace reports whether a program wrote all of it, and not the driver.
func (g sameKind) fromUserSpace() bool {
	return !g.contains(func(r driverRecord) bool { return !r.userSpace })
}

// contains reports whether a record of the group's own code is such a one.
func (g sameKind) contains(such func(driverRecord) bool) bool {
	return slices.ContainsFunc(g.incidents, func(in incident) bool {
		return such(in.primary) || slices.ContainsFunc(in.along, func(r driverRecord) bool {
			return r.event.Kind == g.event.Kind && r.event.Code == g.event.Code && such(r)
		})
	})
}

// evidence quotes the newest, what goes along with it, and the oldest.
func (v *gpuView) evidence(g sameKind) []Evidence {
	newest, oldest := g.incidents[0], g.incidents[len(g.incidents)-1]
	all := []Evidence{v.quote(newest.primary)}
	seen := map[string]bool{fmt.Sprint(newest.primary.event.Kind, newest.primary.event.Code): true}
	for _, r := range newest.along {
		if key := fmt.Sprint(r.event.Kind, r.event.Code); !seen[key] && len(all) < 4 {
			seen[key] = true
			all = append(all, v.quote(r))
		}
	}
	if len(g.incidents) > 1 {
		all = append(all, v.quote(oldest.primary))
	}
	return all
}

func (v *gpuView) quote(r driverRecord) Evidence {
	source := fmt.Sprintf("kernel log of node %s, sequence %d", v.node.Name, r.Sequence)
	switch {
	case r.condition != "":
		source = fmt.Sprintf("Node %s .status.conditions[%s]", v.node.Name, r.condition)
	case r.userSpace:
		source += fmt.Sprintf(", priority %d: written from user space, not by the driver", r.Priority)
	}
	return Evidence{Source: source, Time: r.Time, Text: clip(r.Text)}
}

// quoteKernel quotes a record that is none of the driver's reports.
func (n *Node) quoteKernel(k api.KernelRecord) Evidence {
	return Evidence{
		Source: fmt.Sprintf("kernel log of node %s, sequence %d", n.Name, k.Sequence), Time: k.Time, Text: clip(k.Text),
	}
}

// gpuAt is nvidia-smi's GPU of an address; nil when it does not show it.
func (v *gpuView) gpuAt(p xid.PCI) *nvidiasmi.GPU {
	if v.smi == nil {
		return nil
	}
	for i, g := range v.smi.GPUs {
		if g.PCI != nil && g.PCI.String() == p.String() {
			return &v.smi.GPUs[i]
		}
	}
	return nil
}

// answers reports whether nvidia-smi shows the GPU, and it answers.
func (v *gpuView) answers(p xid.PCI) bool {
	g := v.gpuAt(p)
	return g != nil && !g.Lost() && g.MemoryTotal != nil
}

// allAnswer reports whether nvidia-smi shows GPUs, no fewer than the node has, and all of them answer.
func (v *gpuView) allAnswer() bool {
	return v.smi != nil && len(v.smi.GPUs) > 0 && len(v.smi.GPUs) >= len(gpuAddresses(v.node)) &&
		!slices.ContainsFunc(v.smi.GPUs, func(g nvidiasmi.GPU) bool { return g.Lost() || g.MemoryTotal == nil })
}

// over reports whether it happened before the driver was loaded last, and the GPU answers since.
func (v *gpuView) over(g sameKind) bool {
	newest := g.incidents[0].primary
	return newest.condition == "" && v.loaded >= 0 && newest.Uptime < v.loaded && v.answers(g.event.PCI)
}

// pastAfter is how old an incident is that a GPU got over.
const pastAfter = 24 * time.Hour

// past reports whether it happened more than a day ago, by the node's own clock, and nvidia-smi shows that nothing is
// left of it.
func (v *gpuView) past(g sameKind) bool {
	newest := g.incidents[0].primary
	if newest.condition != "" || v.node.Host == nil || !v.healthy(g.event) {
		return false
	}
	probe := v.node.Host.Probe
	switch {
	case probe.Uptime > 0 && newest.Uptime > 0:
		return probe.Uptime-newest.Uptime > pastAfter
	case !probe.Time.IsZero() && !newest.Time.IsZero():
		return probe.Time.Sub(newest.Time) > pastAfter
	}
	return false
}

// healthy reports whether nvidia-smi shows the GPU of an event, and says that it needs nothing. An event that names
// none of the node's GPUs (of an NVSwitch, of the GSP) may be of each of them.
func (v *gpuView) healthy(e xid.Event) bool {
	if v.smi == nil || len(v.smi.GPUs) == 0 || v.node.Host == nil || len(v.smi.GPUs) < len(gpuAddresses(v.node)) {
		return false
	}
	if g := v.gpuAt(e.PCI); g != nil {
		return v.needsNothing(*g)
	}
	named := e.PCI != (xid.PCI{}) && e.Kind != xid.KindSXid
	return !named && !slices.ContainsFunc(v.smi.GPUs, func(g nvidiasmi.GPU) bool { return !v.needsNothing(g) })
}

func (v *gpuView) needsNothing(g nvidiasmi.GPU) bool {
	need, _ := recovery(g.RecoveryAction)
	_, remaps := remapFinding(v.node, g)
	return !g.Lost() && need == "" && !remaps && !yes(g.ResetRequired) && !yes(g.DrainAndReset)
}

// times returns when it happened; none when one of the records does not tell.
func (v *gpuView) times(g sameKind) []time.Time {
	var all []time.Time
	for _, in := range g.incidents {
		if in.primary.Time.IsZero() {
			return nil
		}
		all = append(all, in.primary.Time)
	}
	return all
}

// gpuObject names a GPU in findings: GPU node-a/0000:17:00.
func gpuObject(n *Node, p xid.PCI) Object {
	if p == (xid.PCI{}) {
		return n.Object()
	}
	return Object{Kind: "GPU", Name: n.Name + "/" + p.String()}
}

// smiObject names a GPU as nvidia-smi has it.
func smiObject(n *Node, g nvidiasmi.GPU) Object {
	if g.PCI != nil {
		return gpuObject(n, *g.PCI)
	}
	return Object{Kind: "GPU", Name: n.Name + "/" + g.ID}
}

// smiEvidence quotes an element of nvidia-smi's XML.
func smiEvidence(n *Node, g nvidiasmi.GPU, element, value string) Evidence {
	return Evidence{
		Source: fmt.Sprintf("nvidia-smi -q -x on node %s, gpu %s", n.Name, g.ID),
		Text:   fmt.Sprintf("<%s>%s</%s>", element, value, element),
	}
}

// eachSMI calls do for each GPU node whose nvidia-smi could be read, and records the others as unknown.
func eachSMI(f *Facts, r *Result, do func(n *Node, v *gpuView)) {
	r.EachHost(f, func(n *Node, _ *api.Diagnosis) {
		v := n.gpus()
		if v.smi == nil {
			r.Unknown(n.Object(), "nvidia-smi says nothing that can be read: %s",
				cmp.Or(firstLine(v.smiError), "it was not run"))
			return
		}
		do(n, v)
	})
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return clip(line)
}

// yes reports whether a value is told, and true.
func yes(b *bool) bool { return b != nil && *b }

// moreThan reports whether a value is told, and above a limit.
func moreThan(n *int64, limit int64) bool { return n != nil && *n > limit }

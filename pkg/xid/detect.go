package xid

import (
	"slices"
	"strings"
)

// IDs of the detectors. They are also the keys of [Code].Detectors.
const (
	IDNVSentinel   = "nvsentinel"
	IDGpud         = "gpud"
	IDNPDKmsg      = "npd-kmsg"
	IDNPDJournald  = "npd-journald"
	IDEKS          = "eks"
	IDDevicePlugin = "device-plugin"
	IDDCGM         = "dcgm"
	IDAKS          = "aks"
	IDACK          = "ack"
	IDHyperPod     = "hyperpod"
	IDGKE          = "gke"
	IDTracepoint   = "tracepoint"
)

// Sight describes whether a detector sees an injected line.
type Sight string

const (
	Yes     Sight = "yes"
	No      Sight = "no"
	Depends Sight = "depends" // depends on something outside the line; see Verdict.Why
)

// Verdict is a detector's reaction to one line in one form.
type Verdict struct {
	Detector string `json:"detector"` // ID
	Seen     Sight  `json:"seen"`
	// Reaction is a human-readable description of the consequence, such as "RESTART_BM: cordons and drains the node,
	// may reboot it". It is "" if the detector does not see the line.
	Reaction string `json:"reaction,omitempty"`
	Why      string `json:"why,omitempty"` // reason why the detector does not see the line, or what this depends on
	// Action is the detector's own term for the requested action, such as RESTART_BM or
	// "RebootSystem,HardwareInspection".
	Action string `json:"action,omitempty"`
	// Fatal is true if the detector considers the node or the GPU broken. MayReboot is true if the detector may reboot,
	// reset or terminate the node in its default configuration. Both are false if the detector does not see the line,
	// and true if they depend on something outside the line.
	Fatal     bool `json:"fatal"`
	MayReboot bool `json:"mayReboot"`
}

// Detector is a program that detects GPU errors.
type Detector struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Reads string `json:"reads"` // the source that the detector reads
	// Provider is the providerID prefix of the detector's nodes, if the detector runs in only one cloud.
	Provider string `json:"provider,omitempty"`
	// Notes describe behavior that may surprise users who inject errors.
	Notes []string `json:"notes,omitempty"`
	// Forget describes how to clear an injected error from the detector. Lines cannot be removed from the kernel log.
	Forget string `json:"forget"`

	judge func(Event, Kmsg) Verdict
}

// Judge returns how the detector reacts to the event written in the form f. [FormAuto] means a write to /dev/kmsg. For
// detectors that read the log, Judge applies the detector's own patterns to the text that the detector would read.
func (d Detector) Judge(e Event, f Form) Verdict {
	k, err := Record(e, f)
	var v Verdict
	if err != nil {
		v = Verdict{Seen: No, Why: err.Error()}
	} else {
		v = d.judge(e, k)
	}
	v.Detector = d.ID
	if v.Seen == No {
		v.Reaction, v.Action, v.Fatal, v.MayReboot = "", "", false, false
	}
	return v
}

// Detectors returns all known detectors.
func Detectors() []Detector {
	return slices.Concat(nvsentinel(), gpud(), nodeProblemDetector(), viaDriver(), logFiles())
}

// DetectorsOn returns the detectors that can run on nodes with these providerIDs (Node.spec.providerID). On-premises
// nodes have none.
func DetectorsOn(providerIDs []string) []Detector {
	return slices.DeleteFunc(Detectors(), func(d Detector) bool {
		return d.Provider != "" &&
			!slices.ContainsFunc(providerIDs, func(id string) bool { return strings.HasPrefix(id, d.Provider) })
	})
}

// LookupDetector returns the detector with the given ID.
func LookupDetector(id string) (Detector, bool) {
	all := Detectors()
	i := slices.IndexFunc(all, func(d Detector) bool { return d.ID == id })
	if i < 0 {
		return Detector{}, false
	}
	return all[i], true
}

// JudgeAll returns the verdicts of all detectors, in the order of Detectors.
func JudgeAll(e Event, f Form) []Verdict {
	var out []Verdict
	for _, d := range Detectors() {
		out = append(out, d.Judge(e, f))
	}
	return out
}

func miss(why string) Verdict { return Verdict{Seen: No, Why: why} }

// reaction returns the detector's reaction to the event's code according to the catalog.
func reaction(id string, e Event) (Reaction, bool) {
	if e.Kind != KindXID {
		return Reaction{}, false
	}
	c, ok := lookup(e.Code)
	r := c.Detectors[id]
	return r, ok
}

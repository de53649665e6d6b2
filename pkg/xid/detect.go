package xid

import (
	"slices"
	"strings"
)

// IDs of the detectors, also the keys of [Code].Detectors.
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

// Sight reports whether a detector gets to see an injected line.
type Sight string

const (
	Yes     Sight = "yes"
	No      Sight = "no"
	Depends Sight = "depends" // on something that the line does not tell; Verdict.Why says on what
)

// Verdict is what one detector makes of one line in one form.
type Verdict struct {
	Detector string `json:"detector"` // ID
	Seen     Sight  `json:"seen"`
	// Reaction is what follows, for people: "RESTART_BM: cordons and drains the node, may reboot it". "" if it does not
	// see it.
	Reaction string `json:"reaction,omitempty"`
	Why      string `json:"why,omitempty"` // why it does not see the line, or what it depends on
	// Action is the detector's own word for what it wants done: RESTART_BM, "RebootSystem,HardwareInspection".
	Action string `json:"action,omitempty"`
	// Fatal: it counts the node or the GPU as broken. MayReboot: it may reboot, reset or terminate the node, in its
	// default set-up. Both are false if it does not see the line, and true where they depend on something that the line
	// does not tell.
	Fatal     bool `json:"fatal"`
	MayReboot bool `json:"mayReboot"`
}

// Detector is a program that looks for errors of GPUs.
type Detector struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Reads string `json:"reads"` // where it gets its knowledge from
	// Provider is what the providerID of its nodes begins with, when it runs on the nodes of one cloud only.
	Provider string `json:"provider,omitempty"`
	// Notes are what can surprise those who inject.
	Notes []string `json:"notes,omitempty"`
	// Forget is what it takes to make it forget what it saw. The kernel log itself cannot be unwritten.
	Forget string `json:"forget"`

	judge func(Event, Kmsg) Verdict
}

// Judge reports whether the detector sees the event if it is written in the form f, and what it then does. [FormAuto]
// is a write to /dev/kmsg. For readers of the log the verdict is computed: their own patterns are applied to what they
// would read.
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

// Detectors returns all detectors that are known.
func Detectors() []Detector {
	return slices.Concat(nvsentinel(), gpud(), nodeProblemDetector(), viaDriver(), logFiles())
}

// DetectorsOn returns the detectors that can run on nodes with these providerIDs (Node.spec.providerID), which one's
// own machines lack.
func DetectorsOn(providerIDs []string) []Detector {
	return slices.DeleteFunc(Detectors(), func(d Detector) bool {
		return d.Provider != "" &&
			!slices.ContainsFunc(providerIDs, func(id string) bool { return strings.HasPrefix(id, d.Provider) })
	})
}

// LookupDetector returns the detector with an ID.
func LookupDetector(id string) (Detector, bool) {
	all := Detectors()
	i := slices.IndexFunc(all, func(d Detector) bool { return d.ID == id })
	if i < 0 {
		return Detector{}, false
	}
	return all[i], true
}

// JudgeAll returns the verdicts of all detectors, in their order.
func JudgeAll(e Event, f Form) []Verdict {
	var out []Verdict
	for _, d := range Detectors() {
		out = append(out, d.Judge(e, f))
	}
	return out
}

func miss(why string) Verdict { return Verdict{Seen: No, Why: why} }

// reaction returns what the catalog knows of a detector's reaction to the event's code.
func reaction(id string, e Event) (Reaction, bool) {
	if e.Kind != KindXID {
		return Reaction{}, false
	}
	c, ok := lookup(e.Code)
	r := c.Detectors[id]
	return r, ok
}

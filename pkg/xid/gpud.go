package xid

import "strings"

func gpud() []Detector {
	return []Detector{{
		ID:    IDGpud,
		Name:  "gpud",
		Reads: "records with any facility in /dev/kmsg, from the start of the ring buffer",
		Notes: []string{
			"the same line within a minute counts once",
			"it runs the GPU checks only if NVML works and returns a product name",
			"after two unsuccessful reboots, it suggests a hardware inspection",
		},
		Forget: "gpud set-healthy for the accelerator-nvidia-error-xid (or -sxid) component; gpud reads the entire " +
			"ring buffer, so it finds the old lines again if it restarts before the next reboot",
		judge: judgeGpud,
	}}
}

func judgeGpud(e Event, k Kmsg) Verdict {
	switch {
	case find("gpud lost", k) != nil, find("gpud fallen-off", k) != nil:
		return gpudVerdict(Event{Kind: KindXID, Code: 79}) // gpud records both as 79
	case find("gpud sxid", k) != nil && find("gpud sxid pci", k) != nil:
		return gpudSXidVerdict(e)
	case find("gpud xid", k) != nil:
		return gpudXIDVerdict(e, k)
	case e.Kind == KindXID && e.MIG.On:
		return miss("the pattern does not allow a MIG instance")
	case e.Kind == KindXID && e.Address == AddressFunction:
		return miss("the pattern does not allow a function in the address: omit .0")
	case e.Kind == KindXID:
		return miss("the pattern requires a comma after the code")
	default:
		return miss("the XID checks do not search for such lines")
	}
}

func gpudXIDVerdict(e Event, k Kmsg) Verdict {
	r, known := reaction(IDGpud, e)
	if !known || r.Severity == "" {
		return miss("the code is not in the table: the line is dropped")
	}
	if isNVLink5(e.Code) && find("gpud nvlink5", k) != nil {
		return Verdict{
			Seen: Yes, Action: r.Action, Fatal: true,
			Reaction: "depends on the unit and the registers: an event, or the state unhealthy with the suggested " +
				"action " +
				r.Action,
		}
	}
	v := gpudVerdict(e)
	if e.Code == 63 || e.Code == 64 {
		v.Seen, v.Why = Depends, r.Note
	}
	return v
}

func gpudVerdict(e Event) Verdict {
	r, _ := reaction(IDGpud, e)
	v := Verdict{Seen: Yes, Action: r.Action, Fatal: r.Fatal && !isNVLink5(e.Code)}
	v.Reaction = r.Severity + " event"
	if v.Fatal {
		v.Reaction += ", unhealthy"
	}
	if r.Action != "" {
		v.Reaction += ", suggests " + strings.ReplaceAll(r.Action, ",", " and ")
	}
	return v
}

func gpudSXidVerdict(e Event) Verdict {
	s, ok := LookupSXid(e.Code)
	switch {
	case ok && s.Gpud == "yes":
		return Verdict{
			Seen: Yes, Fatal: e.Severity == SeverityFatal, Reaction: "SXid event; gpud's table determines the health " +
				"state",
		}
	case ok && s.Gpud == "no":
		return miss("the code is not in the table: the line is dropped")
	default:
		return Verdict{
			Seen: Depends, Fatal: e.Severity == SeverityFatal, Reaction: "SXid event; gpud's table determines the " +
				"health state",
			Why: "only if the table contains the code",
		}
	}
}

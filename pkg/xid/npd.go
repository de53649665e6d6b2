package xid

import "fmt"

func nodeProblemDetector() []Detector {
	const forget = "events expire; a permanent condition disappears only when node-problem-detector restarts"
	notes := []string{
		"it contains no NVIDIA rules: the reaction depends on the local configuration",
		`it appends \z to every pattern, so a pattern must match up to the end of the line, for example with .*`,
	}
	return []Detector{{
		ID:    IDNPDKmsg,
		Name:  "node-problem-detector, kmsg",
		Reads: "/dev/kmsg from the start of the ring buffer, within the lookback; a record with several lines counts as one line",
		Notes: append(notes, "after the ring buffer overflows, it continues reading at the end of the buffer, so the "+
			"lines in between are lost"),
		Forget: forget + ", and only if the line is then older than the lookback",
		judge: func(e Event, k Kmsg) Verdict {
			return judgeRule(e, find("npd kmsg", k), "")
		},
	}, {
		ID:     IDNPDJournald,
		Name:   "node-problem-detector, journald",
		Reads:  "journal entries with the configured SYSLOG_IDENTIFIER, usually kernel",
		Notes:  notes,
		Forget: forget + ", and only if the line is then older than the lookback",
		judge: func(e Event, k Kmsg) Verdict {
			identifier, _ := JournaldView(k)
			if identifier != "kernel" {
				why :=
					fmt.Sprintf("journald sets the entry's identifier to %q, but only entries with the identifier kernel are read: use the form %s",
						identifier, FormKernel)
				return miss(why)
			}
			return judgeRule(e, find("npd journald", k), " and the source is kernel")
		},
	}}
}

func judgeRule(e Event, match []string, also string) Verdict {
	rule := npdRule(e)
	if rule == "" {
		return Verdict{
			Seen: Depends, Reaction: "event or node condition",
			Why: "only if the configuration contains a rule for such lines" + also,
		}
	}
	if match == nil {
		return miss("the usual rule, " + rule + ", does not match")
	}
	return Verdict{
		Seen: Depends, Fatal: true, Reaction: "event, or node condition if the rule is permanent",
		Why: "only if the configuration contains a rule for the line, such as " + rule + also,
	}
}

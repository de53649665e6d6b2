package xid

import "fmt"

func nodeProblemDetector() []Detector {
	const forget = "an event ages out by itself; a permanent condition goes only when node-problem-detector restarts"
	notes := []string{
		"it ships no rule for NVIDIA: what it does, the operator's configuration says",
		`it appends \z to every pattern: one that does not run to the end of the line (no .* there) never fires`,
	}
	return []Detector{{
		ID:     IDNPDKmsg,
		Name:   "node-problem-detector, kmsg",
		Reads:  "/dev/kmsg from the start of the ring buffer, within its lookback; a record of several lines is one line to it",
		Notes:  append(notes, "after an overrun of the ring buffer it goes on at the end: lines in between are lost"),
		Forget: forget + ", and after that only if the line is out of its lookback",
		judge: func(e Event, k Kmsg) Verdict {
			return judgeRule(e, find("npd kmsg", k), "")
		},
	}, {
		ID:     IDNPDJournald,
		Name:   "node-problem-detector, journald",
		Reads:  "the journal, entries with the SYSLOG_IDENTIFIER of its configuration, usually kernel",
		Notes:  notes,
		Forget: forget + ", and after that only if the line is out of its lookback",
		judge: func(e Event, k Kmsg) Verdict {
			identifier, _ := JournaldView(k)
			if identifier != "kernel" {
				why :=
					fmt.Sprintf("journald gives the entry the identifier %q, and it reads those of kernel only: use the form %s",
						identifier, FormKernel)
				return miss(why)
			}
			return judgeRule(e, find("npd journald", k), " and its source is kernel")
		},
	}}
}

func judgeRule(e Event, match []string, also string) Verdict {
	rule := npdRule(e)
	if rule == "" {
		return Verdict{
			Seen: Depends, Reaction: "event or node condition",
			Why: "only if the operator has a rule for such lines" + also,
		}
	}
	if match == nil {
		return miss("the usual rule, " + rule + ", does not match")
	}
	return Verdict{
		Seen: Depends, Fatal: true, Reaction: "event, or node condition if the rule is permanent",
		Why: "only if the operator has a rule for it, like " + rule + also,
	}
}

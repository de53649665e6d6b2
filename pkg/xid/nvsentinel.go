package xid

import (
	"fmt"
	"strings"
)

func nvsentinel() []Detector {
	return []Detector{{
		ID:    IDNVSentinel,
		Name:  "NVSentinel syslog-health-monitor",
		Reads: "entries with _TRANSPORT=kernel in the node's persistent journal (/var/log/journal), every 15 s",
		Notes: []string{
			"the first poll only sets the cursor, so earlier lines are never read",
			"it runs only on nodes labeled nvsentinel.dgxc.nvidia.com/driver.installed=true and kata.enabled=false",
			"for a GPU that is missing from gpu_metadata.json, the action is RESTART_VM instead of COMPONENT_RESET",
			"by default, the chart reboots the node for COMPONENT_RESET, RESTART_VM and RESTART_BM",
		},
		Forget: `reboot the node, or run this command on the node: logger -t nvsentinel-gpu-reset "GPU reset executed: GPU-UUID, success: true" ` +
			`(with a UUID from the metadata), after which NVSentinel uncordons the node`,
		judge: judgeNVSentinel,
	}}
}

func judgeNVSentinel(e Event, k Kmsg) Verdict {
	switch {
	case find("nvsentinel sxid", k) != nil:
		m := find("nvsentinel sxid", k)
		v := nvsentinelVerdict("CONTACT_SUPPORT")
		if m[4] != string(SeverityFatal) {
			v = nvsentinelVerdict("NONE")
		}
		v.Seen = Depends
		v.Why = fmt.Sprintf(
			"only if the metadata contains an NVLink to switch %s, link %s; otherwise, it only logs an error", m[2],
			m[5],
		)
		return v
	case find("nvsentinel fallen-off", k) != nil:
		return nvsentinelVerdict("RESTART_BM")
	case find("nvsentinel uuid", k) != nil:
		return Verdict{Seen: Yes, Reaction: "stores the GPU's UUID, but creates no event"}
	case find("nvsentinel xid", k) != nil:
		return nvsentinelXIDVerdict(e, k)
	}
	return miss(nvsentinelMiss(e, k))
}

func nvsentinelXIDVerdict(e Event, k Kmsg) Verdict {
	if isNVLink5(e.Code) && find("nvsentinel nvlink5", k) != nil {
		return Verdict{
			Seen: Yes, Action: "BY_RULE", Fatal: true, MayReboot: true,
			Reaction: "depends on the unit, the registers and the driver version: from no event to COMPONENT_RESET, which may reboot the node",
			Why:      "it uses the driver version in the metadata; a line that matches no rule is not fatal",
		}
	}
	r, known := reaction(IDNVSentinel, e)
	switch {
	case !known:
		v := nvsentinelVerdict("CONTACT_SUPPORT")
		v.Why = "the code is unknown, and unknown codes are treated as fatal"
		return v
	case r.Action == "FROM_MESSAGE":
		return nvsentinelVerdict(recoveryAction(e.Body))
	default:
		v := nvsentinelVerdict(r.Action)
		if r.Action == "COMPONENT_RESET" {
			v.Why = fmt.Sprintf("RESTART_VM instead if %s is missing from the metadata", e.PCI)
		}
		return v
	}
}

// isNVLink5 reports whether NVSentinel and gpud decode lines with this code by unit and registers.
func isNVLink5(code int) bool { return 144 <= code && code <= 150 }

// recoveryAction returns the action that NVSentinel derives from an XID 154: it reads the text in the last parentheses.
func recoveryAction(body string) string {
	last := body[strings.LastIndexByte(body, '(')+1:]
	last, _, _ = strings.Cut(last, ")")
	switch last {
	case "GPU Reset Required", "Drain and Reset":
		return "COMPONENT_RESET"
	case "Node Reboot Required":
		return "RESTART_BM"
	case "None":
		return "NONE"
	default:
		return "CONTACT_SUPPORT"
	}
}

// nvsentinelVerdict returns the verdict for an action. All actions except NONE are fatal, so the default rules cordon
// and drain the node. The subsequent reaction assumes the default configuration of fault-remediation.
func nvsentinelVerdict(action string) Verdict {
	v := Verdict{Seen: Yes, Action: action, Fatal: action != "NONE"}
	switch action {
	case "NONE":
		v.Reaction = "NONE: a Kubernetes event, no cordon"
	case "CONTACT_SUPPORT":
		v.Reaction =
			"CONTACT_SUPPORT: cordons and drains the node, then leaves it cordoned without remediating it (label " +
				"remediation-failed)"
	default: // COMPONENT_RESET, RESTART_VM, RESTART_BM
		v.Reaction = action + ": cordons and drains the node, and may reboot it"
		v.MayReboot = true
	}
	return v
}

func nvsentinelMiss(e Event, k Kmsg) string {
	_, message := JournaldView(k)
	switch {
	case e.Kind == KindSXid && e.Severity == "", e.Kind == KindSXid && !e.HasLink:
		return "the pattern requires the severity and the link of an SXid"
	case e.Kind != KindXID && e.Kind != KindSXid && e.Kind != KindFallenOff && e.Kind != KindUUID:
		return "the checks do not search for such lines"
	case e.MIG.On:
		return "the pattern does not allow a MIG instance"
	case e.Address == AddressOld:
		return "the pattern requires PCI: before the address"
	case message != k.Text:
		return fmt.Sprintf("journald strips the leading %q, which the pattern requires, from user-space records: use the form %s",
			strings.TrimSuffix(k.Text, message), FormKernel)
	default:
		return "the pattern does not match"
	}
}

package xid

import (
	"fmt"
	"strings"
)

func nvsentinel() []Detector {
	return []Detector{{
		ID:    IDNVSentinel,
		Name:  "NVSentinel syslog-health-monitor",
		Reads: "the persistent journal of the node (/var/log/journal), entries with _TRANSPORT=kernel, every 15 s",
		Notes: []string{
			"its first poll only sets the cursor: it never sees earlier lines",
			"it runs only on nodes labeled nvsentinel.dgxc.nvidia.com/driver.installed=true and kata.enabled=false",
			"a GPU that is not in its gpu_metadata.json gets RESTART_VM instead of COMPONENT_RESET",
			"its default chart reboots the node for COMPONENT_RESET, RESTART_VM and RESTART_BM",
		},
		Forget: `reboot the node; or run on the node: logger -t nvsentinel-gpu-reset "GPU reset executed: GPU-UUID, success: true" ` +
			`(with a UUID from its metadata), and it uncordons the node`,
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
			"only if its metadata has an NVLink to the switch %s, link %s; otherwise, it only logs an error", m[2],
			m[5],
		)
		return v
	case find("nvsentinel fallen-off", k) != nil:
		return nvsentinelVerdict("RESTART_BM")
	case find("nvsentinel uuid", k) != nil:
		return Verdict{Seen: Yes, Reaction: "remembers the UUID of the GPU: no event"}
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
			Why:      "it uses the driver version in its metadata; a line without a rule is not fatal",
		}
	}
	r, known := reaction(IDNVSentinel, e)
	switch {
	case !known:
		v := nvsentinelVerdict("CONTACT_SUPPORT")
		v.Why = "it does not know the code, and treats unknown codes as fatal"
		return v
	case r.Action == "FROM_MESSAGE":
		return nvsentinelVerdict(recoveryAction(e.Body))
	default:
		v := nvsentinelVerdict(r.Action)
		if r.Action == "COMPONENT_RESET" {
			v.Why = fmt.Sprintf("RESTART_VM instead if its metadata lacks %s", e.PCI)
		}
		return v
	}
}

// isNVLink5 reports whether NVSentinel and gpud decode lines with the code by unit and registers.
func isNVLink5(code int) bool { return 144 <= code && code <= 150 }

// recoveryAction returns the action that NVSentinel reads from an XID 154: the text in the last parentheses.
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
			"CONTACT_SUPPORT: cordons and drains the node, which stays cordoned without remediation (label remediation-failed)"
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
		return "its pattern requires the severity and the link of an SXid"
	case e.Kind != KindXID && e.Kind != KindSXid && e.Kind != KindFallenOff && e.Kind != KindUUID:
		return "its checks do not search for such lines"
	case e.MIG.On:
		return "its pattern does not allow a MIG instance"
	case e.Address == AddressOld:
		return "its pattern requires PCI: before the address"
	case message != k.Text:
		return fmt.Sprintf("journald strips the leading %q from records of user space, but its pattern requires it: use the form %s",
			strings.TrimSuffix(k.Text, message), FormKernel)
	default:
		return "its pattern does not match"
	}
}

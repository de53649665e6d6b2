package xid

import (
	"fmt"
	"strings"
)

// viaDriver returns the detectors that query the driver and therefore do not detect any text in a log.
func viaDriver() []Detector {
	blind := func(id, source string, describe func(Reaction, Event) string) func(Event, Kmsg) Verdict {
		return func(e Event, _ Kmsg) Verdict {
			why := "it does not read the log: " + source
			if r, ok := reaction(id, e); ok && describe != nil {
				why += "; it would " + describe(r, e)
			}
			return miss(why)
		}
	}
	return []Detector{{
		ID: IDEKS, Provider: "aws:",
		Name:   "EKS node monitoring agent",
		Reads:  "DCGM's XID policy; /dev/kmsg only for NCCL crashes and kernel bugs",
		Notes:  []string{"the agent's own test uses DCGM: dcgmi test --inject --gpuid 0 -f 319 -v 1"},
		Forget: "nothing to clear for log lines; it is unknown what clears the condition after an injection with DCGM",
		judge: blind(IDEKS, "it queries DCGM (dcgmi test --inject works)", func(r Reaction, e Event) string {
			if r.Fatal {
				return fmt.Sprintf(
					"set AcceleratedHardwareReady=False with reason NvidiaXID%dError, which triggers node auto repair",
					e.Code,
				)
			}
			return fmt.Sprintf("write the event NvidiaXID%dWarning", e.Code)
		}),
	}, {
		ID:    IDDevicePlugin,
		Name:  "NVIDIA k8s-device-plugin",
		Reads: "NVML events (XidCriticalError)",
		Notes: []string{
			"DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS change which codes it handles",
			"`xid CODE NODE --layers kernel,nvml` sends it the event: measured with v0.20.0",
			"events of nvml-mock (August 2026) do not reach it, because nvml-mock sends them only after another NVML call",
		},
		Forget: "nothing to clear for log lines; a device marked unhealthy recovers when the plugin restarts or receives SIGHUP",
		judge: blind(IDDevicePlugin, "it waits for NVML events", func(r Reaction, e Event) string {
			if e.Code == 79 {
				return "mark all GPUs on the node unhealthy, because waiting for events fails"
			}
			if r.Fatal {
				return "mark the GPU unhealthy, so that the node's nvidia.com/gpu count decreases by one"
			}
			return "ignore the code, which is on the plugin's ignore list"
		}),
	}, {
		ID:    IDDCGM,
		Name:  "DCGM and dcgm-exporter",
		Reads: "NVML events, in nv-hostengine",
		Notes: []string{
			"dcgmi test --inject --gpuid 0 -f 230 -v 79 sets the metric (no log line), if the exporter uses the same hostengine; " +
				"`xid 79 NODE --layers kernel,dcgm` runs this command",
		},
		Forget: "nothing to clear for log lines; the DCGM_FI_DEV_XID_ERRORS metric keeps the last XID",
		judge: blind(IDDCGM, "it gets NVML events (dcgmi test --inject -f 230 sets the metric)",
			func(_ Reaction, e Event) string {
				return fmt.Sprintf("show DCGM_FI_DEV_XID_ERRORS=%d", e.Code)
			}),
	}, {
		ID:     IDTracepoint,
		Name:   "tracepoint readers (eBPF)",
		Reads:  "the driver's nvidia:nvidia_dev_xid tracepoint",
		Forget: "nothing to clear",
		judge:  blind(IDTracepoint, "only the driver itself fires the tracepoint", nil),
	}}
}

// logFiles returns the cloud detectors that read files or consoles that may include the kernel log. Their rules are not
// public, so their best verdict is Depends.
func logFiles() []Detector {
	return []Detector{{
		ID: IDAKS, Provider: "azure:",
		Name:   "AKS node-problem-detector",
		Reads:  "the system log, with non-public scripts in the node image",
		Notes:  []string{"it does not run on node pools with --gpu-driver none"},
		Forget: "not public; watch the GPUXIDErrors node condition",
		judge: onlyErrors("the GPUXIDErrors condition and an event", func(Kmsg) string {
			return "the scripts are not public; a driver installed by AKS is required"
		}),
	}, {
		ID: IDACK, Provider: "cn-",
		Name:   "ACK node-problem-detector",
		Reads:  "/var/log/messages or /var/log/syslog",
		Notes:  []string{"it keeps track of the XIDs that it has handled"},
		Forget: "unknown; it isolates the GPU through a file that the device plugin reads; see Alibaba's documentation",
		judge:  onlyErrors("an event or a condition; it also isolates the GPU", syslogFile),
	}, {
		ID: IDHyperPod, Provider: "aws:",
		Name:   "SageMaker HyperPod health monitoring agent",
		Reads:  "/var/log/messages, DCGM policies, nvidia-smi",
		Notes:  []string{"AWS's workshop appends a line with the current date to /var/log/messages"},
		Forget: "unknown; it reboots or replaces the node automatically",
		judge: func(e Event, k Kmsg) Verdict {
			v := onlyErrors("XidHardwareFailure: labels the node, and reboots or replaces it", syslogFile)(e, k)
			v.MayReboot = v.Seen != No
			return v
		},
	}, {
		ID: IDGKE, Provider: "gce:",
		Name:   "GKE node-problem-detector and Cloud Logging",
		Reads:  "the kernel log and the serial console, filtered for NVRM: Xid; the configuration is not public",
		Forget: "not public; Cloud Logging entries remain until their retention period ends",
		judge: func(e Event, k Kmsg) Verdict {
			if !strings.Contains(k.Text, "NVRM: Xid") {
				return miss("the filter requires NVRM: Xid")
			}
			return Verdict{
				Seen: Depends, Fatal: true, Reaction: "log entry, and anything based on it",
				Why: fmt.Sprintf(
					"the configuration is not public; the serial console gets the line only if the console's log level is above %d",
					k.Level,
				),
			}
		},
	}}
}

// onlyErrors returns a judge for a detector that is documented only for XIDs and SXids.
func onlyErrors(reaction string, why func(Kmsg) string) func(Event, Kmsg) Verdict {
	return func(e Event, k Kmsg) Verdict {
		if e.Kind != KindXID && e.Kind != KindSXid {
			return miss("only XIDs and SXids are documented")
		}
		return Verdict{Seen: Depends, Fatal: true, Reaction: reaction, Why: why(k)}
	}
}

// syslogFile returns the condition under which a record reaches a syslog file. By default, imklog drops records from
// user space.
func syslogFile(k Kmsg) string {
	if k.Facility == facilityKern {
		return "only if rsyslog writes the kernel log to that file"
	}
	return "only if rsyslog reads the journal (imjournal), or imklog has PermitNonKernelFacility enabled, as on Ubuntu; by default, it drops records from user space"
}

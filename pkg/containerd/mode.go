package containerd

import (
	"fmt"
	"strings"
)

// Mode is a way to break the configuration.
type Mode string

// Modes, in order of severity.
const (
	ModeMissingHandler   Mode = "missing-handler"
	ModeWrongInstance    Mode = "wrong-instance"
	ModeBinaryMissing    Mode = "binary-missing"
	ModeWrongRuntimeType Mode = "wrong-runtime-type"
	ModeCgroupDriver     Mode = "cgroup-driver"
	ModeOptionMisplaced  Mode = "option-misplaced"
	ModeDropinShadow     Mode = "dropin-shadow"
	ModeDefaultMissing   Mode = "default-missing"
	ModeUnparsable       Mode = "unparsable"
)

// ModeInfo describes a mode.
type ModeInfo struct {
	Mode    Mode
	Summary string // description of what the mode does
	Symptom string // end of the error message that users see, which is the same in all releases
	Root    string // ID of the root cause that a diagnosis should find
	// NodeLoss means that CRI or the daemon does not restart, and that the node is NotReady until the configuration is
	// restored. Individual faults in other modes can have the same effect; see Broken.
	NodeLoss bool
}

const noCRI = "unknown service runtime.v1.RuntimeService"

// Modes returns all modes in order of severity.
func Modes() []ModeInfo {
	return []ModeInfo{
		{
			ModeMissingHandler, "removes the handler from all files that containerd loads",
			`no runtime for "nvidia" is configured`, "rt.handler-missing", false,
		},
		{
			ModeWrongInstance,
			"moves the handler to the configuration of another containerd, which the kubelet does not use",
			`no runtime for "nvidia" is configured`, "rt.wrong-instance", false,
		},
		{
			ModeBinaryMissing, "sets the handler's BinaryName to a file that does not exist",
			"no such file or directory", "rt.binary-missing", false,
		},
		{
			ModeWrongRuntimeType, "sets the handler's runtime_type to one without a shim", "file does not exist",
			"rt.runtime-type", false,
		},
		{
			ModeCgroupDriver, "inverts the handler's SystemdCgroup, so that it differs from the kubelet's cgroup driver",
			`expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups`, "rt.cgroup-driver", false,
		},
		{
			ModeOptionMisplaced,
			"moves BinaryName out of the handler's options to a level where containerd ignores it: pods run with " +
				"plain runc, without GPUs",
			"no error; no GPU in the pod", "rt.option-misplaced", false,
		},
		{
			ModeDropinShadow,
			"adds a drop-in that contains only the handler; before containerd 2.0, such a drop-in replaces the " +
				"entire CRI configuration",
			noCRI, "rt.dropin-shadow", true,
		},
		{ModeDefaultMissing, "sets the default handler to one that does not exist", noCRI, "rt.default-missing", true},
		{ModeUnparsable, "adds a line that is not TOML to the root file", "connection refused", "rt.unparsable", true},
	}
}

// ParseMode returns the mode with the given name. The error lists the supported modes.
func ParseMode(name string) (Mode, error) {
	var names []string
	for _, m := range Modes() {
		if string(m.Mode) == name {
			return m.Mode, nil
		}
		names = append(names, string(m.Mode))
	}
	return "", fmt.Errorf("unknown mode %q; supported modes: %s", name, strings.Join(names, ", "))
}

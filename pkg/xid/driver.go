package xid

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Generation is a release of the driver whose wording differs from the next.
type Generation string

const (
	// R535 stands for the releases 510 to 565: "Ch 0000000f", "pid='<unknown>', name=<unknown>" where no process is
	// known, and no XID 154.
	R535 Generation = "R535"
	// R580 stands for the releases 570 to 594: "channel 0x0000000f", and nothing where no process is known.
	R580 Generation = "R580"
	// R595 stands for 595 and later: as R580, with "caused by previous Xid" on 45 and the sequence of RPCs on 119.
	R595 Generation = "R595"
	// DefaultGeneration is used for an empty Generation.
	DefaultGeneration = R580
)

var release = regexp.MustCompile(`^[rR]?(\d{3})(?:\.\d+)*$`)

// ParseGeneration understands a release or version of the driver: "R580", "580", "580.95.05". "" is the default.
func ParseGeneration(s string) (Generation, error) {
	if strings.TrimSpace(s) == "" {
		return DefaultGeneration, nil
	}
	m := release.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return "", fmt.Errorf("%q is no driver version: write it like R535, R580, or 580.95.05", s)
	}
	switch n, _ := strconv.Atoi(m[1]); { // three digits cannot fail
	case n < 570:
		return R535, nil
	case n < 595:
		return R580, nil
	default:
		return R595, nil
	}
}

func (g Generation) orDefault() Generation {
	if g == "" {
		return DefaultGeneration
	}
	return g
}

func (g Generation) channel(n uint64) string {
	if g == R535 {
		return fmt.Sprintf("Ch %08x", n)
	}
	return fmt.Sprintf("channel 0x%08x", n)
}

// Process is what the driver says about the process that was hit. The zero Process is none.
type Process struct {
	PID  int    `json:"pid,omitempty"`
	Name string `json:"name,omitempty"` // some old drivers print a pid without a name
	// Unknown: the driver (R535) knows none and says so, pid='<unknown>'; Name is then "<unknown>" or "".
	Unknown bool `json:"unknown,omitempty"`
}

// UnknownProcess returns how drivers of the generation R535 print that they know no process.
func UnknownProcess() Process { return Process{Name: "<unknown>", Unknown: true} }

// maxComm is the length that the kernel cuts names of processes to (TASK_COMM_LEN, without the NUL).
const maxComm = 15

// ParseProcess understands "PID,NAME" and "PID". The name is printable, has no comma (it would end the name for every
// parser) and at most 15 bytes, to which the kernel cuts names.
func ParseProcess(s string) (Process, error) {
	pid, name, named := strings.Cut(strings.TrimSpace(s), ",")
	n, err := strconv.ParseUint(pid, 10, 31)
	if err != nil || n == 0 {
		return Process{}, fmt.Errorf("process %q has no process ID: write PID,NAME, like 1234,python", s)
	}
	p := Process{PID: int(n), Name: name}
	switch {
	case named && name == "":
		return Process{}, fmt.Errorf("process %q has an empty name: write PID,NAME, or PID alone", s)
	case len(name) > maxComm:
		return Process{}, fmt.Errorf("process name %q is too long: the kernel cuts names to %d bytes, so write %q",
			name, maxComm, strings.ToValidUTF8(name[:maxComm], ""))
	}
	return p, p.check()
}

// String returns the text of the driver, "" for none.
func (p Process) String() string {
	var s string
	switch {
	case p.Unknown:
		s = "pid='<unknown>'"
	case p.PID != 0:
		s = "pid=" + strconv.Itoa(p.PID)
	default:
		return ""
	}
	if p.Name != "" {
		s += ", name=" + p.Name
	}
	return s
}

func (p Process) check() error {
	if p.PID < 0 {
		return fmt.Errorf("process ID %d is negative: write that of a process, or none", p.PID)
	}
	if p.PID == 0 && !p.Unknown && p.Name != "" {
		return fmt.Errorf("process %q has no process ID: the driver never prints a name alone", p.Name)
	}
	if strings.Contains(p.Name, ",") {
		return fmt.Errorf("process name %q has a comma: every parser would end the name there", p.Name)
	}
	return checkText("process name", p.Name)
}

// MIG is the slice of a GPU that an error belongs to. The zero MIG is the whole GPU.
type MIG struct {
	On    bool `json:"on,omitempty"`
	GI    int  `json:"gi,omitempty"` // GPU instance
	HasCI bool `json:"hasCI,omitempty"`
	CI    int  `json:"ci,omitempty"` // compute instance
}

var migText = regexp.MustCompile(`^(?:GPU-I:)?(\d{1,3})(?:(?:/| GPU-CI:)(\d{1,3}))?$`)

// ParseMIG understands "5" (GPU instance), "5/0" (with compute instance) and the driver's "GPU-I:05 GPU-CI:00". "" is
// none.
func ParseMIG(s string) (MIG, error) {
	if s == "" {
		return MIG{}, nil
	}
	m := migText.FindStringSubmatch(s)
	if m == nil {
		return MIG{}, fmt.Errorf("%q is no MIG instance: write GI or GI/CI, like 5 or 5/0", s)
	}
	g := MIG{On: true, HasCI: m[2] != ""}
	g.GI, _ = strconv.Atoi(m[1]) // three digits cannot fail
	g.CI, _ = strconv.Atoi(m[2])
	return g, nil
}

// String returns the text of the driver, "" for none.
func (m MIG) String() string {
	switch {
	case !m.On:
		return ""
	case m.HasCI:
		return fmt.Sprintf("GPU-I:%02d GPU-CI:%02d", m.GI, m.CI)
	default:
		return fmt.Sprintf("GPU-I:%02d", m.GI)
	}
}

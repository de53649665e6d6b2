package xid

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Generation is a range of driver releases with the same wording.
type Generation string

const (
	// R535 covers releases 510 to 565. They print "Ch 0000000f", and "pid='<unknown>', name=<unknown>" if no process is
	// known. They do not print XID 154.
	R535 Generation = "R535"
	// R580 covers releases 570 to 594. They print "channel 0x0000000f", and omit the process field if no process is
	// known.
	R580 Generation = "R580"
	// R595 covers releases 595 and later. They print the same text as R580, but with "caused by previous Xid" in XID 45
	// and the RPC sequence in XID 119.
	R595 Generation = "R595"
	// DefaultGeneration is used for an empty Generation.
	DefaultGeneration = R580
)

var release = regexp.MustCompile(`^[rR]?(\d{3})(?:\.\d+)*$`)

// ParseGeneration parses a driver release or version, such as "R580", "580" or "580.95.05". An empty string means the
// default.
func ParseGeneration(s string) (Generation, error) {
	if strings.TrimSpace(s) == "" {
		return DefaultGeneration, nil
	}
	m := release.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return "", fmt.Errorf("invalid driver version %q: must be a version such as R535, R580, or 580.95.05", s)
	}
	switch n, _ := strconv.Atoi(m[1]); { // cannot fail for three digits
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

// Process is the process that the driver names as affected. The zero Process means none.
type Process struct {
	PID  int    `json:"pid,omitempty"`
	Name string `json:"name,omitempty"` // some old drivers print a PID without a name
	// Unknown is true if the driver (R535) prints pid='<unknown>' because it does not know the process. Name is then
	// "<unknown>" or "".
	Unknown bool `json:"unknown,omitempty"`
}

// UnknownProcess returns the process that R535 drivers print if they do not know the process.
func UnknownProcess() Process { return Process{Name: "<unknown>", Unknown: true} }

// maxComm is the length to which the kernel truncates process names (TASK_COMM_LEN without the NUL).
const maxComm = 15

// ParseProcess parses "PID,NAME" or "PID". The name must be printable and at most 15 bytes long, the length to which
// the kernel truncates names. It must not contain commas, because every parser treats a comma as the end of the name.
func ParseProcess(s string) (Process, error) {
	pid, name, named := strings.Cut(strings.TrimSpace(s), ",")
	n, err := strconv.ParseUint(pid, 10, 31)
	if err != nil || n == 0 {
		return Process{}, fmt.Errorf("invalid process %q: must have the form PID,NAME, such as 1234,python", s)
	}
	p := Process{PID: int(n), Name: name}
	switch {
	case named && name == "":
		return Process{}, fmt.Errorf("process %q has an empty name: must be PID,NAME or only PID", s)
	case len(name) > maxComm:
		return Process{}, fmt.Errorf("process name %q is too long: the kernel truncates names to %d bytes; use %q",
			name, maxComm, strings.ToValidUTF8(name[:maxComm], ""))
	}
	return p, p.check()
}

// String formats the process as the driver prints it, or returns "" for none.
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
		return fmt.Errorf("process ID %d must not be negative", p.PID)
	}
	if p.PID == 0 && !p.Unknown && p.Name != "" {
		return fmt.Errorf("process %q has no process ID: the driver never prints a name without an ID", p.Name)
	}
	if strings.Contains(p.Name, ",") {
		return fmt.Errorf("process name %q contains a comma, which every parser treats as the end of the name", p.Name)
	}
	return checkText("process name", p.Name)
}

// MIG is the MIG instance to which an error belongs. The zero MIG means the whole GPU.
type MIG struct {
	On    bool `json:"on,omitempty"`
	GI    int  `json:"gi,omitempty"` // GPU instance
	HasCI bool `json:"hasCI,omitempty"`
	CI    int  `json:"ci,omitempty"` // compute instance
}

var migText = regexp.MustCompile(`^(?:GPU-I:)?(\d{1,3})(?:(?:/| GPU-CI:)(\d{1,3}))?$`)

// ParseMIG parses "5" (GPU instance), "5/0" (with compute instance) or the driver's "GPU-I:05 GPU-CI:00". An empty
// string means no MIG instance.
func ParseMIG(s string) (MIG, error) {
	if s == "" {
		return MIG{}, nil
	}
	m := migText.FindStringSubmatch(s)
	if m == nil {
		return MIG{}, fmt.Errorf("invalid MIG instance %q: must be GI or GI/CI, such as 5 or 5/0", s)
	}
	g := MIG{On: true, HasCI: m[2] != ""}
	g.GI, _ = strconv.Atoi(m[1]) // cannot fail for three digits
	g.CI, _ = strconv.Atoi(m[2])
	return g, nil
}

// String formats the MIG instance as the driver prints it, or returns "" for none.
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

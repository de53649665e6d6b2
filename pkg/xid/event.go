package xid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind is the kind of a driver line.
type Kind string

const (
	KindXID  Kind = "xid"  // NVRM: Xid (PCI:0000:17:00): 79, ...
	KindSXid Kind = "sxid" // nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 ...
	// KindFallenOff is a single record with three lines, written when the driver probes a GPU that does not respond.
	KindFallenOff Kind = "fallen-off-bus"

	// KindUUID and KindSerial accompany an XID. KindUUID is "NVRM: GPU at PCI:0000:55:00: GPU-...", logged once per GPU
	// before its first XID. Body is the UUID.
	KindUUID Kind = "gpu-uuid"
	// KindSerial is "NVRM: GPU Board Serial Number: ...", which follows the UUID line if there is one. Body is the
	// serial number.
	KindSerial Kind = "gpu-serial"
	KindGPU    Kind = "gpu-note" // NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.

	KindNote       Kind = "note"        // NVRM: followed by any other text
	KindSwitchNote Kind = "switch-note" // nvidia-nvswitch0: followed by any other text
)

// Severity is the severity in an SXid line. Detail lines (Severity, Data) have none.
type Severity string

const (
	SeverityFatal    Severity = "Fatal"
	SeverityNonFatal Severity = "Non-fatal"
)

// Address is the notation of the PCI address in a line.
type Address string

const (
	AddressDriver Address = "" // driver's notation: without the function for an Xid, with the function for an SXid
	// AddressFunction includes the PCI function in the address of an Xid line. No driver prints this notation, but some
	// injectors do. gpud does not detect it.
	AddressFunction Address = "function"
	AddressOld      Address = "old" // (0000:03:00), without PCI:, as printed by drivers before about R300
)

// Event is one report from the driver. Events are comparable.
type Event struct {
	Kind    Kind    `json:"kind"`
	Code    int     `json:"code,omitempty"` // for an Xid or SXid
	PCI     PCI     `json:"pci,omitzero"`   // address of the GPU or NVSwitch
	Address Address `json:"address,omitempty"`
	MIG     MIG     `json:"mig,omitzero"`     // Xid only
	Process Process `json:"process,omitzero"` // Xid only
	// Body is the remaining text. It is printable and contains no line breaks.
	Body string `json:"body,omitempty"`
	// CausedBy is the earlier Xid named in an Xid 45 (R595 and later), or 0.
	CausedBy int `json:"causedBy,omitempty"`

	Switch   int      `json:"switch,omitempty"` // number of the NVSwitch
	Severity Severity `json:"severity,omitempty"`
	HasLink  bool     `json:"hasLink,omitempty"`
	Link     int      `json:"link,omitempty"` // NVLink number of an SXid

	// DeviceID is the vendor and device ID of a GPU that has fallen off the bus, for example 10de:2330.
	DeviceID string `json:"deviceID,omitempty"`
}

// Text returns the line as the driver prints it, without priority and line ending. Only [KindFallenOff] has more than
// one line.
func (e Event) Text() string {
	switch e.Kind {
	case KindXID:
		text := "NVRM: Xid (" + e.address() + "): " + strconv.Itoa(e.Code)
		if p := e.Process.String(); p != "" {
			text += ", " + p
		}
		if e.Body != "" {
			text += ", " + e.Body
		}
		if e.CausedBy != 0 {
			text += " caused by previous Xid " + strconv.Itoa(e.CausedBy)
		}
		return text
	case KindSXid:
		text := fmt.Sprintf("nvidia-nvswitch%d: SXid (%s): %05d, ", e.Switch, e.address(), e.Code)
		if e.Severity != "" {
			text += string(e.Severity) + ", "
			if e.HasLink {
				text += fmt.Sprintf("Link %02d ", e.Link)
			}
		}
		return text + e.Body
	case KindFallenOff:
		return "NVRM: The NVIDIA GPU " + e.PCI.WithFunction() + "\n" +
			"NVRM: (PCI ID: " + e.DeviceID + ") installed in this system has\n" +
			"NVRM: fallen off the bus and is not responding to commands."
	case KindUUID:
		return "NVRM: GPU at PCI:" + e.PCI.String() + ": " + e.Body
	case KindSerial:
		return "NVRM: GPU Board Serial Number: " + e.Body
	case KindGPU:
		return "NVRM: GPU " + e.PCI.WithFunction() + ": " + e.Body
	case KindSwitchNote:
		return fmt.Sprintf("nvidia-nvswitch%d: %s", e.Switch, e.Body)
	default:
		return "NVRM: " + e.Body
	}
}

// String describes the event in a few words, such as "XID 79 on 0000:17:00".
func (e Event) String() string {
	switch e.Kind {
	case KindXID:
		return fmt.Sprintf("XID %d on %s", e.Code, e.PCI)
	case KindSXid:
		return fmt.Sprintf("SXid %d on switch %d (%s)", e.Code, e.Switch, e.PCI)
	case KindFallenOff:
		return fmt.Sprintf("fallen off the bus: %s", e.PCI)
	default:
		return e.Text()
	}
}

func (e Event) address() string {
	s := "PCI:" + e.PCI.String()
	switch {
	case e.Address == AddressOld:
		s = e.PCI.String()
	case e.Address == AddressFunction || e.Kind == KindSXid:
		s = "PCI:" + e.PCI.WithFunction()
	}
	if e.MIG.On {
		s += " " + e.MIG.String()
	}
	return s
}

// level returns the priority of the driver's line: kern.warning, the default without an explicit level, or kern.err for
// SXids.
func (e Event) level() int {
	if e.Kind == KindSXid || e.Kind == KindSwitchNote {
		return 3
	}
	return 4
}

// Check returns an error if the event contains anything that cannot occur in a driver line.
func (e Event) Check() error {
	switch e.Kind {
	case KindXID, KindSXid:
		if err := checkNumber(e.Code); err != nil {
			return err
		}
	case KindFallenOff, KindUUID, KindSerial, KindGPU, KindNote, KindSwitchNote:
	default:
		return fmt.Errorf("unknown event kind %q", e.Kind)
	}
	if e.CausedBy != 0 && (e.Code != 45 || e.Body == "") {
		return errors.New("only an XID 45 that has a message can name the XID that caused it")
	}
	for _, part := range []struct{ name, text string }{
		{"message", e.Body}, {"device ID", e.DeviceID}, {"severity", string(e.Severity)},
	} {
		if err := checkText(part.name, part.text); err != nil {
			return err
		}
	}
	return e.Process.check()
}

// maxNumber is the largest supported Xid or SXid. The driver stores 32 bits, but prints no number of more than five
// digits.
const maxNumber = 99999

func checkNumber(n int) error {
	if n < 1 || n > maxNumber {
		return fmt.Errorf("XID %d does not exist: must be 1 to %d (see xid list)", n, maxNumber)
	}
	return nil
}

// checkText rejects text that would produce more than one record, or that a terminal might not show.
func checkText(what, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("the %s is not valid UTF-8", what)
	}
	for i, r := range text {
		if r == '\n' || r == '\r' {
			return fmt.Errorf("the %s contains a line break at byte %d: an XID must be one line", what, i)
		}
		if !unicode.IsPrint(r) {
			return fmt.Errorf("the %s contains the control character %U at byte %d: use only printable characters", what, r,
				i)
		}
	}
	if what != "message" && strings.TrimSpace(text) != text {
		return fmt.Errorf("the %s %q begins or ends with white space", what, text)
	}
	return nil
}

package xid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind tells the lines of the driver apart.
type Kind string

const (
	KindXID  Kind = "xid"  // NVRM: Xid (PCI:0000:17:00): 79, ...
	KindSXid Kind = "sxid" // nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 ...
	// One record of three lines, when the driver probes a GPU that does not answer
	KindFallenOff Kind = "fallen-off-bus"

	// Companions of an XID.
	// NVRM: GPU at PCI:0000:55:00: GPU-...; once per GPU, before its first XID. Body is the UUID.
	KindUUID   Kind = "gpu-uuid"
	KindSerial Kind = "gpu-serial" // NVRM: GPU Board Serial Number: ...; follows the UUID if known. Body is the number.
	KindGPU    Kind = "gpu-note"   // NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.

	KindNote       Kind = "note"        // NVRM: and any other text
	KindSwitchNote Kind = "switch-note" // nvidia-nvswitch0: and any other text
)

// Severity is the word of an SXid; its lines with details (Severity, Data) have none.
type Severity string

const (
	SeverityFatal    Severity = "Fatal"
	SeverityNonFatal Severity = "Non-fatal"
)

// Address is how a line spells the PCI address.
type Address string

const (
	AddressDriver Address = "" // as the driver: an Xid without the function, an SXid with it
	// An Xid with the function: no driver does it, but some injectors; gpud then misses it
	AddressFunction Address = "function"
	AddressOld      Address = "old" // (0000:03:00), without PCI:, as drivers before about R300
)

// Event is one report of the driver. Events are comparable.
type Event struct {
	Kind    Kind    `json:"kind"`
	Code    int     `json:"code,omitempty"` // of an Xid or SXid
	PCI     PCI     `json:"pci,omitzero"`   // of the GPU or the NVSwitch
	Address Address `json:"address,omitempty"`
	MIG     MIG     `json:"mig,omitzero"`     // Xid only
	Process Process `json:"process,omitzero"` // Xid only
	// Body is the text behind all that. It is printable and has no line breaks.
	Body string `json:"body,omitempty"`
	// CausedBy is the earlier Xid that a 45 names (R595 and later), or 0.
	CausedBy int `json:"causedBy,omitempty"`

	Switch   int      `json:"switch,omitempty"` // number of the NVSwitch
	Severity Severity `json:"severity,omitempty"`
	HasLink  bool     `json:"hasLink,omitempty"`
	Link     int      `json:"link,omitempty"` // NVLink of an SXid

	// DeviceID is vendor and device of a GPU that fell off the bus, as 10de:2330.
	DeviceID string `json:"deviceID,omitempty"`
}

// Text returns the line as the driver prints it, without priority and line end. Only [KindFallenOff] has more than one
// line.
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

// String names the event in a few words: "XID 79 on 0000:17:00".
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

// level returns the priority of the driver's line: kern.warning, as it prints without a level; SXids with KERN_ERR.
func (e Event) level() int {
	if e.Kind == KindSXid || e.Kind == KindSwitchNote {
		return 3
	}
	return 4
}

// Check reports what cannot be in a line of the driver.
func (e Event) Check() error {
	switch e.Kind {
	case KindXID, KindSXid:
		if err := checkNumber(e.Code); err != nil {
			return err
		}
	case KindFallenOff, KindUUID, KindSerial, KindGPU, KindNote, KindSwitchNote:
	default:
		return fmt.Errorf("an event of the kind %q does not exist", e.Kind)
	}
	if e.CausedBy != 0 && (e.Code != 45 || e.Body == "") {
		return errors.New("only XID 45 with a text names the XID that caused it")
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

// maxNumber: the driver keeps the number of an Xid or SXid in 32 bits, but prints none of more than five digits.
const maxNumber = 99999

func checkNumber(n int) error {
	if n < 1 || n > maxNumber {
		return fmt.Errorf("XID %d does not exist: numbers go from 1 to %d (xid list shows them)", n, maxNumber)
	}
	return nil
}

// checkText refuses what would make more than one record of a text, or hide it on a terminal.
func checkText(what, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("the %s is not valid UTF-8: write it in plain text", what)
	}
	for i, r := range text {
		if r == '\n' || r == '\r' {
			return fmt.Errorf("the %s has a line break at byte %d: one XID is one line", what, i)
		}
		if !unicode.IsPrint(r) {
			return fmt.Errorf("the %s has the control character %U at byte %d: use printable characters only", what, r,
				i)
		}
	}
	if what != "message" && strings.TrimSpace(text) != text {
		return fmt.Errorf("the %s %q begins or ends with a blank", what, text)
	}
	return nil
}

package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// Options configure an event. The zero Options select a GPU at 0000:00:00 and the catalog's text.
type Options struct {
	PCI     PCI
	MIG     MIG
	Process Process // zero means the template's process, which is usually that of the real line
	Driver  Generation
	// Seed varies the numbers in the text (channels, addresses, links). The same seed produces the same text. 0
	// produces the text in the catalog.
	Seed uint64
	// Message replaces the text after the code and process. It may begin with "pid=..., name=..., ", as in driver
	// lines.
	Message string
	// Variant is the name of a template of the code ([Code].Variants). An empty string means the default.
	Variant string

	// UUID of the GPU; if set, [Cascade] begins with the UUID line that the driver prints before a GPU's first XID
	UUID   string
	Serial string // serial number of the board; its line follows the UUID line
	// Peers are other GPUs of the machine, for cascades that affect both ends of an NVLink.
	Peers    []PCI
	Switch   int    // number of the NVSwitch, for an SXid
	DeviceID string // vendor and device ID for fallen-off-bus; "" means an L40S, 10de:26b5
}

// New returns an XID event. A code that is not in the catalog requires Options.Message.
func New(code int, o Options) (Event, error) {
	return newXID(code, o, newValues(o.Seed))
}

func newXID(code int, o Options, v *values) (Event, error) {
	if err := checkNumber(code); err != nil {
		return Event{}, err
	}
	e := Event{Kind: KindXID, Code: code, PCI: o.PCI, MIG: o.MIG, Process: o.Process}
	e.PCI.Function = 0 // the driver does not print the function, so it would be lost
	known, ok := lookup(code)
	if !ok && o.Message == "" {
		return Event{},
			fmt.Errorf("XID %d is not in the catalog (which ends at %d), so its message is unknown: specify --message",
				code, lastCode())
	}
	if ok {
		t, err := known.template(o.Variant, o.Driver.orDefault())
		if err != nil {
			return Event{}, err
		}
		if t.NoProcess && e.Process != (Process{}) {
			return Event{}, fmt.Errorf("the driver prints no process for XID %d: remove --process", code)
		}
		if o.Message == "" {
			if e.Body, err = v.fill(t.Body, o.Driver.orDefault()); err != nil {
				return Event{}, fmt.Errorf("text of XID %d: %w", code, err)
			}
		}
		switch {
		case t.NoProcess || e.Process != (Process{}):
		case t.Process != (Process{}) && o.Message == "":
			e.Process = t.Process
		case o.Driver == R535:
			e.Process = UnknownProcess()
		}
	}
	if o.Message != "" {
		if err := checkText("message", o.Message); err != nil {
			return Event{}, err
		}
		message := strings.TrimSpace(o.Message)
		if message == "" {
			return Event{},
				fmt.Errorf("the message is blank: must be the text that the driver prints after %q", strconv.Itoa(code)+", ")
		}
		if p, rest := cutProcess(message); p != (Process{}) {
			if o.Process != (Process{}) && p != o.Process {
				return Event{}, fmt.Errorf("the message names the process %q, but --process specifies another one: remove one of them", p)
			}
			if ok && known.Template.NoProcess {
				return Event{}, fmt.Errorf("the driver prints no process for XID %d: remove it from the message", code)
			}
			e.Process, message = p, rest
		}
		e.Body = message
		e.cutCause()
	}
	return e, e.Check()
}

// NewSXid returns an error on NVSwitch o.Switch at o.PCI. A code unknown to [LookupSXid] requires Options.Message,
// which must begin with the severity, as in "Fatal, Link 30 LTSSM Fault Up".
func NewSXid(code int, o Options) (Event, error) {
	if err := checkNumber(code); err != nil {
		return Event{}, err
	}
	if o.Switch < 0 || o.Switch > 999 {
		return Event{}, fmt.Errorf("NVSwitch %d does not exist: switches are numbered from 0", o.Switch)
	}
	if o.Process != (Process{}) || o.MIG.On {
		return Event{}, fmt.Errorf("SXid %d is an NVSwitch error: SXids have no process and no MIG instance", code)
	}
	e := Event{Kind: KindSXid, Code: code, PCI: o.PCI, Switch: o.Switch}
	if o.Message != "" {
		if err := checkText("message", o.Message); err != nil {
			return Event{}, err
		}
		if e.cutSeverity(strings.TrimSpace(o.Message)); e.Severity == "" {
			return Event{}, fmt.Errorf("the message of an SXid must begin with its severity, such as %q",
				"Fatal, Link 30 LTSSM Fault Up")
		}
		return e, e.Check()
	}
	s, ok := LookupSXid(code)
	if !ok {
		var known []string
		for _, s := range SXids() {
			known = append(known, strconv.Itoa(s.Number))
		}
		return Event{},
			fmt.Errorf("the message of SXid %d is unknown: specify --message, such as %q, or use one of %s",
				code, "Fatal, Link 30 LTSSM Fault Up", strings.Join(known, ", "))
	}
	e.Severity, e.HasLink, e.Link, e.Body = s.Severity, true, s.Link, s.Body
	return e, e.Check()
}

// defaultDevice is the device ID in the known record of a GPU that has fallen off the bus (an L40S).
const defaultDevice = "10de:26b5"

// NewFallenOff returns the record that the driver prints when it probes a GPU that does not respond. The record is not
// an XID.
func NewFallenOff(o Options) (Event, error) {
	if o.Message != "" || o.Process != (Process{}) || o.MIG.On {
		return Event{},
			fmt.Errorf("the %s record is always the same: remove the message, process and MIG instance", KindFallenOff)
	}
	e := Event{Kind: KindFallenOff, PCI: o.PCI, DeviceID: strings.ToLower(o.DeviceID)}
	if e.DeviceID == "" {
		e.DeviceID = defaultDevice
	}
	if !deviceID.MatchString(e.DeviceID) {
		return Event{},
			fmt.Errorf("invalid device ID %q: must be vendor and device, such as 10de:2330 (see lspci -n)", o.DeviceID)
	}
	return e, e.Check()
}

func lastCode() int {
	t, err := tables()
	if err != nil || len(t.codes) == 0 {
		return 0
	}
	return t.codes[len(t.codes)-1].Number
}

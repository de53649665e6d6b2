package xid

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

// place is a GPU or NVSwitch, with what is known about the node's driver and about the process that uses it.
type place struct {
	gpu     gpus.GPU
	peers   []gpus.GPU
	driver  string
	process xid.Process
}

// sample returns places for a trial run before the node is known.
func (o *options) sample() []place {
	p := place{gpu: gpus.GPU{PCI: xid.PCI{Bus: 0x17}}, driver: o.driver}
	if address := o.gpus.Address(); address != nil {
		p.gpu.PCI = *address
	}
	return []place{p}
}

// places returns the node's GPUs for which to write lines.
func (o *options) places(info api.Info, pod gpus.Pod) ([]place, error) {
	driver := o.driver
	if driver == "" {
		driver = info.DriverVersion
	}
	if o.isSwitch() {
		return []place{{gpu: gpus.GPU{PCI: *o.gpus.Address()}, driver: driver}}, nil
	}
	chosen, err := o.gpus.Pick(info, pod)
	if err != nil {
		return nil, err
	}
	all, err := gpus.Of(info)
	if err != nil {
		return nil, err
	}
	places := make([]place, len(chosen))
	for i, g := range chosen {
		places[i] = place{gpu: g, driver: driver, process: processOf(info.Pods[pod.UID])}
		for _, other := range all {
			if other.PCI != g.PCI {
				places[i].peers = append(places[i].peers, other)
			}
		}
	}
	return places, nil
}

// maxComm is the length to which the kernel, and therefore the driver, truncates process names.
const maxComm = 15

func processOf(use api.PodUse) xid.Process {
	name := strings.ReplaceAll(use.Process, ",", "_") // all parsers treat a comma as the end of the name
	if len(name) > maxComm {
		name = name[:maxComm]
	}
	if use.PID == 0 || name == "" {
		return xid.Process{}
	}
	return xid.Process{PID: use.PID, Name: name}
}

// compose returns the records for the places, in the order in which they are written.
func (o *options) compose(places []place) ([]kernellog.Record, error) {
	var once []kernellog.Record
	for _, p := range places {
		for _, s := range o.selectors {
			steps, err := o.events(s, p)
			if err != nil {
				return nil, o.blame(err)
			}
			for i, step := range steps {
				gap := step.After
				if i > 0 {
					gap -= steps[i-1].After
				}
				record, err := xid.Record(step.Event, o.form)
				if err != nil {
					return nil, o.blame(err)
				}
				once = append(once, kernellog.Record{
					KmsgRecord: api.KmsgRecord{Data: string(record.Bytes()), Delay: gap},
					XID:        label(step.Event),
					GPU:        cmp.Or(step.Event.PCI, p.gpu.PCI).String(), // a cascade contains lines for peer GPUs
				})
			}
		}
	}
	if total := len(once) * o.count; total > maxRecords {
		return nil, fmt.Errorf("this would write %s to one node: write at most %d at a time", count.Of(total, "record"),
			maxRecords)
	}
	all := make([]kernellog.Record, 0, len(once)*o.count)
	for i := range o.count {
		for j, record := range once {
			if i > 0 && j == 0 {
				record.Delay += o.interval
			}
			all = append(all, record)
		}
	}
	return all, nil
}

// duration returns the sum of the delays between records.
func duration(records []kernellog.Record) time.Duration {
	var sum time.Duration
	for _, r := range records {
		sum += r.Delay
	}
	return sum
}

// events returns the XID event, with its accompanying events if a cascade is requested.
func (o *options) events(s xid.Selector, p place) ([]xid.Step, error) {
	text := o.text
	text.PCI, text.DeviceID = p.gpu.PCI, p.gpu.DeviceID
	generation, err := xid.ParseGeneration(p.driver)
	if err != nil {
		generation = xid.DefaultGeneration // the version of the node's driver is unknown
	}
	text.Driver = generation
	if text.Process == (xid.Process{}) && !o.noProcess {
		text.Process = p.process
	}
	if !takesProcess(s) && (text.Process == p.process || len(o.selectors) > 1) {
		text.Process = xid.Process{} // specifying a process is an error only for a single code
	}
	if o.cascade {
		text.UUID = p.gpu.UUID
		for _, peer := range p.peers {
			text.Peers = append(text.Peers, peer.PCI)
		}
		return xid.Cascade(s.Code, text)
	}
	event, err := s.Event(text)
	if err != nil {
		return nil, err
	}
	if o.noProcess {
		event.Process = xid.Process{}
	}
	if o.hasLink && s.Kind == xid.KindSXid {
		event.HasLink, event.Link = true, o.link
	}
	return []xid.Step{{Event: event}}, nil
}

// takesProcess reports whether the driver ever prints a process in the line for s.
func takesProcess(s xid.Selector) bool {
	code, known := xid.Lookup(s.Code)
	return s.Kind == xid.KindXID && !(known && code.Template.NoProcess)
}

// blame adds the flag that caused an error to the error message.
func (o *options) blame(err error) error {
	if o.text.Message != "" && !strings.Contains(err.Error(), "--") {
		return fmt.Errorf("--message: %w", err)
	}
	return err
}

// label returns a record's label for tables: the number of an XID, or the kind of an accompanying line.
func label(e xid.Event) string {
	switch e.Kind {
	case xid.KindXID:
		return fmt.Sprint(e.Code)
	case xid.KindSXid:
		return fmt.Sprintf("sxid:%d", e.Code)
	default:
		return string(e.Kind)
	}
}

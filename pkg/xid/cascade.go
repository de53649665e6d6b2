package xid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Step is one line of a cascade.
type Step struct {
	After time.Duration `json:"after"` // time since the first line of the cascade
	Event Event         `json:"event"`
}

// Group is a set of errors that occur together.
type Group struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Source      string       `json:"source"`
	Codes       []int        `json:"codes"`   // codes that start the group; see Cascade
	Drivers     []Generation `json:"drivers"` // drivers that log the group in this form

	steps []stepPlan
}

// Groups returns all groups in the order in which [Cascade] tries them.
func Groups() []Group { return groups() }

// GroupFor returns the group of errors that begins with a code under the given driver generation. If there is none, the
// error lists the codes that start a group.
func GroupFor(code int, g Generation) (Group, error) {
	g = g.orDefault()
	var with []int
	var elsewhere []string
	for _, group := range groups() {
		if slices.Contains(group.Codes, code) {
			if slices.Contains(group.Drivers, g) {
				return group, nil
			}
			for _, d := range group.Drivers {
				elsewhere = append(elsewhere, string(d))
			}
		}
		if slices.Contains(group.Drivers, g) {
			with = append(with, group.Codes...)
		}
	}
	if elsewhere != nil {
		return Group{},
			fmt.Errorf("XID %d starts a cascade with drivers %s, not with %s", code, strings.Join(elsewhere, ", "), g)
	}
	slices.Sort(with)
	var list []string
	for _, n := range slices.Compact(with) {
		list = append(list, strconv.Itoa(n))
	}
	hint := ""
	if code == 45 || code == 154 {
		hint = " (this XID follows others; specify the XID that causes it)"
	}
	return Group{}, fmt.Errorf("no cascade is known for XID %d%s; codes with a cascade: %s", code, hint,
		strings.Join(list, ", "))
}

// Cascade returns, in order, the lines that a real fault writes if the first line has this code. Each line has the time
// since the first line. The order is from real logs. All lines occur within a second unless the description states
// otherwise; the milliseconds are made up.
//
// If Options.UUID or Serial is set, the lines with which the driver introduces a GPU before its first XID come first.
// Peers are the other GPUs in faults that affect both ends of an NVLink. Message and Variant are not supported.
func Cascade(code int, o Options) ([]Step, error) {
	if o.Message != "" || o.Variant != "" {
		return nil, fmt.Errorf("a cascade has its own messages: omit the message and the variant, or omit the cascade")
	}
	group, err := GroupFor(code, o.Driver)
	if err != nil {
		return nil, err
	}
	introduction, err := introduce(o)
	if err != nil {
		return nil, err
	}
	b := builder{o: o, shared: newValues(o.Seed), steps: introduction}
	for _, plan := range group.steps {
		if plan.leads != 0 && plan.leads != code {
			continue
		}
		if err := b.add(plan); err != nil {
			return nil, fmt.Errorf("cascade %s: %w", group.Name, err)
		}
	}
	// Sort the steps, because those of peers and repetitions may overlap.
	sorting.StableFunc(b.steps, func(x, y Step) int { return int(x.After - y.After) })
	return b.steps, nil
}

// introduce returns the lines that the driver prints once per GPU, before its first XID.
func introduce(o Options) ([]Step, error) {
	pci := o.PCI
	pci.Function = 0
	var out []Step
	if o.UUID != "" {
		u, err := ParseUUID(o.UUID)
		if err != nil {
			return nil, err
		}
		if u, err = u.GPU(); err != nil {
			return nil, err
		}
		out = append(out, Step{Event: Event{Kind: KindUUID, PCI: pci, Body: string(u)}})
	}
	if o.Serial != "" {
		if strings.ContainsAny(o.Serial, " \t") {
			return nil, fmt.Errorf("serial number %q contains a space: specify it as shown by nvidia-smi -q", o.Serial)
		}
		out = append(out, Step{Event: Event{Kind: KindSerial, Body: o.Serial}})
	}
	for _, s := range out {
		if err := s.Event.Check(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// stepPlan describes one or more lines of a group.
type stepPlan struct {
	after   time.Duration
	leads   int // code whose cascade includes the lines; 0 means all
	code    int
	variant string
	// process is the process to name if the user specifies none. It overrides the template's process, so that all lines
	// of a group name the same process. nil means no process.
	process *Process
	times   int           // number of lines, each with the next value of vary; 0 means 1
	every   time.Duration // interval between the lines
	vary    string
	from    uint64 // first value of vary
	peers   bool   // also write the lines for the peers, or, with only, just for the peers
	only    bool
	cause   int    // XID named in an XID 45
	note    string // write a KindGPU line instead, or a KindNote line if it begins with "GPU{"
	other   bool   // whether the process differs from the one that the user specified
}

type builder struct {
	o      Options
	shared *values
	steps  []Step
}

func (b *builder) add(p stepPlan) error {
	gpus := []PCI{b.o.PCI}
	if p.peers {
		gpus = append(gpus, b.o.Peers...)
		if p.only {
			gpus = gpus[1:]
		}
	}
	for at, gpu := range gpus {
		for i := range max(1, p.times) {
			e, err := b.event(p, gpu, i)
			if err != nil {
				return err
			}
			// Each peer reports slightly later, because the interrupts are handled one after another.
			after := p.after + time.Duration(i)*p.every + time.Duration(at)*7*time.Millisecond
			b.steps = append(b.steps, Step{after, e})
		}
	}
	return nil
}

func (b *builder) event(p stepPlan, gpu PCI, i int) (Event, error) {
	o := b.o
	o.PCI, o.Variant = gpu, p.variant
	if p.note != "" {
		gpu.Function = 0
		body, err := b.shared.fill(p.note, o.Driver.orDefault())
		kind := KindGPU
		if strings.HasPrefix(p.note, "GPU{") {
			kind, gpu = KindNote, PCI{}
		}
		return Event{Kind: kind, PCI: gpu, Body: body}, err
	}
	if p.vary != "" {
		b.shared.named[p.vary] = p.from + uint64(i)
		defer delete(b.shared.named, p.vary)
	}
	switch {
	case p.process == nil:
		o.Process = Process{}
	case p.other || o.Process == (Process{}):
		o.Process = *p.process
	}
	e, err := newXID(p.code, o, b.shared)
	if p.process == nil && !e.Process.Unknown {
		e.Process = Process{} // use the template's process
		if known, _ := lookup(p.code); o.Driver == R535 && !known.Template.NoProcess {
			e.Process = UnknownProcess()
		}
	}
	if o.Driver == R595 && p.cause != 0 {
		e.CausedBy = p.cause
	}
	return e, err
}

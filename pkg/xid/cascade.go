package xid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Step is one line of a cascade.
type Step struct {
	After time.Duration `json:"after"` // since the first line of the cascade
	Event Event         `json:"event"`
}

// Group is a set of errors that come together.
type Group struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Source      string       `json:"source"`
	Codes       []int        `json:"codes"`   // that lead to the group: Cascade(one of them)
	Drivers     []Generation `json:"drivers"` // whose logs read so

	steps []stepPlan
}

// Groups returns all groups, in the order in which [Cascade] tries them.
func Groups() []Group { return groups() }

// GroupFor returns the group that code leads to on a driver, or an error that says which codes have one.
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
			fmt.Errorf("XID %d leads to others on the drivers %s, not on %s", code, strings.Join(elsewhere, ", "), g)
	}
	slices.Sort(with)
	var list []string
	for _, n := range slices.Compact(with) {
		list = append(list, strconv.Itoa(n))
	}
	hint := ""
	if code == 45 || code == 154 {
		hint = ": it follows others, so name the code that causes it"
	}
	return Group{}, fmt.Errorf("no other XIDs are known to come with XID %d%s; codes with a cascade: %s", code, hint,
		strings.Join(list, ", "))
}

// Cascade returns what a real fault writes of which code is the leading line: the lines in their order, with the time
// since the first. The order is that of real logs, all within a second unless the description says otherwise; the
// milliseconds are ours.
//
// With Options.UUID, and Serial, the lines come first by which the driver introduces a GPU before its first XID. Peers
// are the other GPUs of faults that strike both ends of an NVLink. Message and Variant cannot be chosen for a cascade.
func Cascade(code int, o Options) ([]Step, error) {
	if o.Message != "" || o.Variant != "" {
		return nil, fmt.Errorf("a cascade has its own texts: leave out the message and the variant, or the cascade")
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
	// Steps of peers and repetitions overlap.
	slices.SortStableFunc(b.steps, func(x, y Step) int { return int(x.After - y.After) })
	return b.steps, nil
}

// introduce makes the lines that the driver prints once per GPU, before its first XID.
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
			return nil, fmt.Errorf("serial number %q has a blank: write it as nvidia-smi -q shows it", o.Serial)
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

// stepPlan is one or several lines of a group.
type stepPlan struct {
	after   time.Duration
	leads   int // only in the cascade of this code; 0: always
	code    int
	variant string
	// whom it blames if the user names nobody: nil nobody; not the template's, so that a group blames one
	process *Process
	times   int           // as many lines, each with the next value of vary; 0 is one
	every   time.Duration // between them
	vary    string
	from    uint64 // first value of vary
	peers   bool   // also, or only with not the GPU itself, on the peers
	only    bool
	cause   int    // the XID that a 45 names
	note    string // a KindGPU line instead, or a KindNote if it begins with "GPU{"
	other   bool   // the process is not the user's
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
			// Peers report a little later each, as their interrupts are served in turn.
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
		e.Process = Process{} // of the template
		if known, _ := lookup(p.code); o.Driver == R535 && !known.Template.NoProcess {
			e.Process = UnknownProcess()
		}
	}
	if o.Driver == R595 && p.cause != 0 {
		e.CausedBy = p.cause
	}
	return e, err
}

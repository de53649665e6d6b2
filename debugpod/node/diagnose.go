package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a Diagnosis. The client reads it as one line, and a sick node is where things are large.
const (
	// MaxAnswer is how long the line of an answer may be, in bytes. Of a Diagnosis that is longer the largest parts are
	// left out. The debug pod has 256 MiB, in which the answer lies more than once.
	MaxAnswer = 24 << 20

	maxUnits    = 16      // Diagnose.Units
	maxLineText = 4 << 10 // bytes of a line of a log, or of a small file
	maxUnread   = 600     // bytes of a reason in Probe.Unread
)

const (
	// diagnosePatience bounds the whole. The single parts give up long before.
	diagnosePatience = 50 * time.Second
	// filePatience is how long a part may take that only reads files: they are in memory, but a dead network file
	// system never answers.
	filePatience = 10 * time.Second
	// infoPatience covers Inspect, whose nvidia-smi has a limit of its own.
	infoPatience = 20 * time.Second
	// runtimePatience covers the calls of InspectRuntime that have limits of their own.
	runtimePatience = 30 * time.Second
	// overtime is how long the end of something is waited for that has its own limit, so that its own words are heard.
	overtime = 4 * time.Second
)

// unitName is what systemd takes for a unit's name (UNIT_NAME_VALID in systemd's unit-name.c), without what journalctl
// takes for a pattern.
var unitName = regexp.MustCompile(
	`^[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*\.(service|socket|mount|slice|target|timer|scope|path)$`,
)

// Validate returns which unit is none.
func (d Diagnose) Validate() error {
	if len(d.Units) > maxUnits {
		return fmt.Errorf("%d units are more than %d", len(d.Units), maxUnits)
	}
	for _, unit := range d.Units {
		if len(unit) > 255 || !unitName.MatchString(unit) {
			return fmt.Errorf("%q is not the name of a systemd unit, such as kubelet.service", shorten(unit, 80))
		}
	}
	return nil
}

// diagnosing is one Diagnose at work. The functions are what cannot be had from files.
type diagnosing struct {
	host  Host
	root  rootFS
	clock clock

	newInspection func(Host) *inspection
	run           func(context.Context, command) (string, error)
	kernelLog     func(path string) (kernelBacklog, error)

	// node is what the parts of the kubelet need to know.
	node knowledge
}

// knowledge is what is known of the node's processes.
type knowledge struct {
	programs   []program
	kubelet    kubelet
	problem    string // why there is no kubelet
	kubeletDir string // --root-dir
	units      []Unit
}

func diagnose(ctx context.Context, req Diagnose, host Host) Diagnosis {
	d := &diagnosing{
		host: host, root: rootFS(host.Root), clock: readClock(host.Proc),
		newInspection: newInspection, run: runCommand, kernelLog: openBacklog,
	}
	return d.diagnose(ctx, req)
}

// diagnose reads all parts at the same time, but for those that need to know the kubelet and its runtime, and for
// NVIDIA's programs: what the driver's state was is read before any of them runs.
func (d *diagnosing) diagnose(ctx context.Context, req Diagnose) Diagnosis {
	ctx, cancel := context.WithTimeoutCause(ctx, diagnosePatience,
		fmt.Errorf("the whole took more than %v", diagnosePatience))
	defer cancel()
	found := &Diagnosis{Probe: Probe{Time: d.clock.now, Uptime: d.clock.uptime}}
	d.node = knowledge{problem: "the processes could not be read", kubeletDir: defaultKubeletDir}
	var rest []*pending
	inspected := d.inspectRuntime().start(ctx)
	var state []*pending
	for _, p := range d.driverState() {
		state = append(state, p.start(ctx))
	}
	for _, p := range d.parts() {
		rest = append(rest, p.start(ctx))
	}
	for _, p := range state {
		p.wait(ctx, found)
	}
	for _, p := range d.programs() {
		rest = append(rest, p.start(ctx))
	}
	inspected.wait(ctx, found)
	for _, p := range d.partsOfKubelet(req, found.Runtime) {
		rest = append(rest, p.start(ctx))
	}
	for _, p := range rest {
		p.wait(ctx, found)
	}
	for field, why := range found.Probe.Unread { // paths are the node's
		found.Probe.Unread[field] = strings.ReplaceAll(why, d.host.Root+"/", "/")
	}
	return *found
}

// driverState returns the files that a program of NVIDIA's might change.
func (d *diagnosing) driverState() []part {
	return []part{
		{"modules", filePatience, d.modules},
		{"driver", filePatience, d.driver},
		{"devices", filePatience, d.devices},
	}
}

// programs returns the parts that run programs of NVIDIA's.
func (d *diagnosing) programs() []part {
	return []part{
		// nvidia-smi, where the driver does not tell all UUIDs
		{"info", infoPatience, func(ctx context.Context) (func(*Diagnosis), error) {
			info := inspect(ctx, Inspect{}, d.host)
			return func(found *Diagnosis) { found.Info = info }, nil
		}},
		{"smi", diagnoseSMILimit + overtime, d.smi},
		{"fabricManager", 2*showLimit + overtime, d.fabricManager},
		{"toolkitVersion", 4*showLimit + overtime, d.toolkitVersion},
	}
}

// parts returns those that need no other.
func (d *diagnosing) parts() []part {
	return []part{
		{"kernelLog", filePatience, d.kernel},
		{"os", filePatience, d.system},
		{"pci", filePatience, d.pci},
		{"validations", filePatience, d.validations},
		{"cdi", filePatience, d.cdi},
		{"secureBoot", filePatience, d.secureBoot},
		{"selinux", filePatience, d.selinux},
	}
}

// partsOfKubelet returns those that need to know the kubelet and its runtime.
func (d *diagnosing) partsOfKubelet(req Diagnose, runtime Runtime) []part {
	here := d.node
	parts := []part{
		{"processes", filePatience, func(context.Context) (func(*Diagnosis), error) {
			if here.programs == nil {
				return nil, errors.New(here.problem)
			}
			byName := gpuProcesses(here.programs)
			return func(found *Diagnosis) { found.Probe.Processes, found.Probe.Units = byName, here.units }, nil
		}},
		{
			"kubeletConfig", filePatience,
			func(context.Context) (func(*Diagnosis), error) { return d.kubeletConfig(here.kubelet, here.problem) },
		},
		{
			"devicePlugins", filePatience,
			func(context.Context) (func(*Diagnosis), error) { return d.devicePlugins(here.kubeletDir) },
		},
		{
			"toolkitConfig", filePatience,
			func(context.Context) (func(*Diagnosis), error) { return d.toolkitConfig(runtime) },
		},
		{"journals", journalLimit + overtime, func(ctx context.Context) (func(*Diagnosis), error) {
			return d.journals(ctx, journalUnits(here.units, here.kubelet.PID, runtime, req.Units))
		}},
	}
	// One hung file system must not hide how full the others are.
	for _, dir := range unique([]string{"/", here.kubeletDir, runtimeDir(runtime)}) {
		parts = append(parts, d.filesystem(dir))
	}
	return parts
}

// inspectRuntime is InspectRuntime, and all processes.
func (d *diagnosing) inspectRuntime() part {
	return part{"runtime", runtimePatience, func(ctx context.Context) (func(*Diagnosis), error) {
		in := d.newInspection(d.host)
		in.inspect(ctx)
		in.stopped(ctx)
		here := knowledge{programs: in.programs}
		here.kubelet, here.problem = findKubelet(in.programs, d.host)
		here.kubeletDir = d.kubeletDir(here.kubelet)
		here.units = d.units(in.programs, here.kubelet, *in.result)
		return func(found *Diagnosis) { found.Runtime, d.node = *in.result, here }, nil
	}}
}

// fit leaves out the largest parts of an answer that would be longer than most bytes.
func (d *Diagnosis) fit(most int) {
	for _, leave := range []struct {
		field string
		out   func()
	}{
		{"smi", func() { d.SMI = "" }},
		{"journals", func() { d.Journals = nil }},
		{"kernelLog", func() { d.KernelLog = nil }},
		{"runtime.decoys", func() { d.Runtime.Decoys = nil }},
		{"runtime.instance", func() { d.Runtime.Instance = nil }},
		{"cdi", func() { d.Probe.CDI = nil }},
	} {
		if d.size() < most {
			return
		}
		leave.out()
		d.Probe.unread(leave.field, fmt.Errorf("with it the answer would be larger than %d bytes", most))
	}
}

// size is about how many bytes of JSON this is: at least as many as it will be. The large texts are not encoded for
// that: there is not the memory for them in the debug pod to lie around once more.
func (d *Diagnosis) size() int {
	rest := *d
	rest.SMI, rest.Journals, rest.KernelLog = "", nil, nil
	raw, err := json.Marshal(rest)
	size := len(raw) + sizeOf(d.SMI) + 1<<10
	if err != nil {
		return 1 << 40
	}
	for unit, text := range d.Journals {
		size += sizeOf(unit) + sizeOf(text)
	}
	for _, record := range d.KernelLog {
		size += sizeOf(record.Text) + 200 // the names of its fields, and its numbers
	}
	return size
}

// sizeOf returns how many bytes of JSON a string is, at most.
func sizeOf(text string) int {
	size := len(text) + len(`"":,`)
	for _, r := range text {
		switch {
		case r == '"', r == '\\', r == '\n', r == '\t', r == '\r':
			size++
		case r < ' ', r == utf8.RuneError, r == '\u2028', r == '\u2029':
			// RuneError stands for a byte that is not UTF-8, too
			size += 5
		}
	}
	return size
}

// unread notes why a field could not be read, behind what was noted before.
func (p *Probe) unread(field string, why error) {
	if p.Unread == nil {
		p.Unread = map[string]string{}
	}
	text := strings.ReplaceAll(why.Error(), "\n", "; ")
	if before := p.Unread[field]; before != "" {
		text = before + "; " + text
	}
	p.Unread[field] = shorten(text, maxUnread)
}

// Package diagnose reads everything on a node that tells why GPU pods may not run there.
package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// maxUnread is how long a reason in Probe.Unread may be, in bytes.
const maxUnread = 600

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

// diagnosing is one Diagnose at work. The functions are what cannot be had from files.
type diagnosing struct {
	host  hostfs.Host
	root  hostfs.FS
	clock clock

	Sources
	run       func(context.Context, hostexec.Command) (string, error)
	kernelLog func(path string) (kernelBacklog, error)

	// node is what the parts of the kubelet need to know.
	node knowledge
}

// knowledge is what is known of the node's processes.
type knowledge struct {
	programs   []process.Process
	kubelet    process.Kubelet
	problem    string // why there is no kubelet
	kubeletDir string // --root-dir
	units      []api.Unit
}

// Sources are what is found out elsewhere, and is part of a Diagnosis.
type Sources struct {
	// Info does Inspect, without pods.
	Info func(context.Context, hostfs.Host) api.Info
	// Runtime does InspectRuntime, and returns all processes besides.
	Runtime func(context.Context, hostfs.Host) (api.Runtime, []process.Process)
}

// Node does Diagnose. The answer is no longer than MaxAnswer.
func Node(ctx context.Context, req api.Diagnose, host hostfs.Host, sources Sources) api.Diagnosis {
	d := &diagnosing{
		host: host, root: hostfs.FS(host.Root), clock: readClock(host.Proc),
		Sources: sources, run: hostexec.Run, kernelLog: openBacklog,
	}
	found := d.diagnose(ctx, req)
	fit(&found, api.MaxAnswer)
	return found
}

// diagnose reads all parts at the same time, but for those that need to know the kubelet and its runtime, and for
// NVIDIA's programs: what the driver's state was is read before any of them runs.
func (d *diagnosing) diagnose(ctx context.Context, req api.Diagnose) api.Diagnosis {
	ctx, cancel := context.WithTimeoutCause(ctx, diagnosePatience,
		fmt.Errorf("the whole took more than %v", diagnosePatience))
	defer cancel()
	found := &api.Diagnosis{Probe: api.Probe{Time: d.clock.now, Uptime: d.clock.uptime}}
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
		{"info", infoPatience, func(ctx context.Context) (func(*api.Diagnosis), error) {
			info := d.Info(ctx, d.host)
			return func(found *api.Diagnosis) { found.Info = info }, nil
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
func (d *diagnosing) partsOfKubelet(req api.Diagnose, runtime api.Runtime) []part {
	here := d.node
	parts := []part{
		{"processes", filePatience, func(context.Context) (func(*api.Diagnosis), error) {
			if here.programs == nil {
				return nil, errors.New(here.problem)
			}
			byName := gpuProcesses(here.programs)
			return func(found *api.Diagnosis) { found.Probe.Processes, found.Probe.Units = byName, here.units }, nil
		}},
		{
			"kubeletConfig", filePatience,
			func(context.Context) (func(*api.Diagnosis), error) {
				return d.kubeletConfig(here.kubelet, here.problem)
			},
		},
		{
			"devicePlugins", filePatience,
			func(context.Context) (func(*api.Diagnosis), error) { return d.devicePlugins(here.kubeletDir) },
		},
		{
			"toolkitConfig", filePatience,
			func(context.Context) (func(*api.Diagnosis), error) { return d.toolkitConfig(runtime) },
		},
		{"journals", journalLimit + overtime, func(ctx context.Context) (func(*api.Diagnosis), error) {
			return d.journals(ctx, journalUnits(here.units, here.kubelet.PID, runtime, req.Units))
		}},
	}
	// One hung file system must not hide how full the others are.
	for _, dir := range unique([]string{"/", here.kubeletDir, runtimeDir(runtime)}) {
		parts = append(parts, d.filesystem(dir))
	}
	return parts
}

// inspectRuntime is what InspectRuntime finds, and all processes.
func (d *diagnosing) inspectRuntime() part {
	return part{"runtime", runtimePatience, func(ctx context.Context) (func(*api.Diagnosis), error) {
		runtime, programs := d.Runtime(ctx, d.host)
		here := knowledge{programs: programs}
		here.kubelet, here.problem = process.FindKubelet(programs, d.host)
		here.kubeletDir = d.kubeletDir(here.kubelet)
		here.units = d.units(programs, here.kubelet, runtime)
		return func(found *api.Diagnosis) { found.Runtime, d.node = runtime, here }, nil
	}}
}

// fit leaves out the largest parts of an answer that would be longer than most bytes.
func fit(d *api.Diagnosis, most int) {
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
		if sizeOfAll(d) < most {
			return
		}
		leave.out()
		unread(&d.Probe, leave.field, fmt.Errorf("with it the answer would be larger than %d bytes", most))
	}
}

// sizeOfAll is about how many bytes of JSON this is: at least as many as it will be. The large texts are not encoded
// for that: there is not the memory for them in the debug pod to lie around once more.
func sizeOfAll(d *api.Diagnosis) int {
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
func unread(p *api.Probe, field string, why error) {
	if p.Unread == nil {
		p.Unread = map[string]string{}
	}
	text := strings.ReplaceAll(why.Error(), "\n", "; ")
	if before := p.Unread[field]; before != "" {
		text = before + "; " + text
	}
	p.Unread[field] = api.Shorten(text, maxUnread)
}

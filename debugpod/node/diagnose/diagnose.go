// Package diagnose collects data that shows why GPU pods may not run on a node.
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

// maxUnread is the maximum length in bytes of a reason in Probe.Unread.
const maxUnread = 600

const (
	// diagnosePatience is the timeout for the entire diagnosis. The timeouts for the parts are much shorter.
	diagnosePatience = 50 * time.Second
	// filePatience is the timeout for a part that only reads files. Most files are in memory, but an unavailable
	// network file system never responds.
	filePatience = 10 * time.Second
	// infoPatience allows time for Inspect, which has its own timeout for nvidia-smi.
	infoPatience = 20 * time.Second
	// runtimePatience allows time for the calls of InspectRuntime, which have their own timeouts.
	runtimePatience = 30 * time.Second
	// overtime is the additional time for an operation with its own timeout, so that the operation's own error is
	// reported.
	overtime = 4 * time.Second
)

// diagnosing is the state of a Diagnose request. Its functions return information that is not available in files; tests
// replace them.
type diagnosing struct {
	host  hostfs.Host
	root  hostfs.FS
	clock clock

	Sources
	run       func(context.Context, hostexec.Command) (string, error)
	kernelLog func(path string) (kernelBacklog, error)

	// node contains the data required by the parts about the kubelet.
	node knowledge
}

// knowledge contains what is known about the node's processes.
type knowledge struct {
	programs   []process.Process
	kubelet    process.Kubelet
	problem    string // reason why the kubelet was not found
	kubeletDir string // --root-dir
	units      []api.Unit
}

// Sources are functions of other packages whose results are part of a Diagnosis.
type Sources struct {
	// Info handles Inspect without pods.
	Info func(context.Context, hostfs.Host) api.Info
	// Runtime handles InspectRuntime, and also returns all processes.
	Runtime func(context.Context, hostfs.Host) (api.Runtime, []process.Process)
}

// Node handles Diagnose. The response is at most MaxAnswer bytes long.
func Node(ctx context.Context, req api.Diagnose, host hostfs.Host, sources Sources) api.Diagnosis {
	d := &diagnosing{
		host: host, root: hostfs.FS(host.Root), clock: readClock(host.Proc),
		Sources: sources, run: hostexec.Run, kernelLog: openBacklog,
	}
	found := d.diagnose(ctx, req)
	fit(&found, api.MaxAnswer)
	return found
}

// diagnose reads most parts in parallel. The parts that depend on the kubelet and its runtime come later. NVIDIA's
// programs run after the driver's state has been read, because they can change it.
func (d *diagnosing) diagnose(ctx context.Context, req api.Diagnose) api.Diagnosis {
	ctx, cancel := context.WithTimeoutCause(ctx, diagnosePatience,
		fmt.Errorf("the inspection took more than %v", diagnosePatience))
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
	for field, why := range found.Probe.Unread { // contains paths on the node
		found.Probe.Unread[field] = strings.ReplaceAll(why, d.host.Root+"/", "/")
	}
	return *found
}

// driverState returns the parts that read files which NVIDIA's programs can change.
func (d *diagnosing) driverState() []part {
	return []part{
		{"modules", filePatience, d.modules},
		{"driver", filePatience, d.driver},
		{"devices", filePatience, d.devices},
	}
}

// programs returns the parts that run NVIDIA's programs.
func (d *diagnosing) programs() []part {
	return []part{
		// Info runs nvidia-smi if the driver's files do not contain all UUIDs.
		{"info", infoPatience, func(ctx context.Context) (func(*api.Diagnosis), error) {
			info := d.Info(ctx, d.host)
			return func(found *api.Diagnosis) { found.Info = info }, nil
		}},
		{"smi", diagnoseSMILimit + overtime, d.smi},
		{"fabricManager", 2*showLimit + overtime, d.fabricManager},
		{"toolkitVersion", 4*showLimit + overtime, d.toolkitVersion},
	}
}

// parts returns the parts that do not depend on others.
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

// partsOfKubelet returns the parts that depend on the kubelet and its runtime.
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
			return d.journals(ctx, journalUnits(here.units, here.kubelet.PID, runtime, req.Units), d.gpuUnits())
		}},
	}
	// There is one part per file system, so that a hanging file system does not hide the usage of the others.
	for _, dir := range unique([]string{"/", here.kubeletDir, runtimeDir(runtime)}) {
		parts = append(parts, d.filesystem(dir))
	}
	return parts
}

// inspectRuntime returns the part that handles InspectRuntime and reads all processes.
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

// fit drops the largest parts of a response until the response fits into the given number of bytes.
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
		unread(&d.Probe, leave.field, fmt.Errorf("omitted: the response would be larger than %d bytes", most))
	}
}

// sizeOfAll returns an upper bound for the size of the response as JSON. It does not encode the large strings, because
// the debug pod does not have enough memory for a second copy.
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
		size += sizeOf(record.Text) + 200 // field names and numbers
	}
	return size
}

// sizeOf returns an upper bound for the size of a string as JSON.
func sizeOf(text string) int {
	size := len(text) + len(`"":,`)
	for _, r := range text {
		switch {
		case r == '"', r == '\\', r == '\n', r == '\t', r == '\r':
			size++
		case r < ' ', r == utf8.RuneError, r == '\u2028', r == '\u2029':
			// RuneError also represents bytes that are not valid UTF-8.
			size += 5
		}
	}
	return size
}

// unread records the reason why a field could not be read, after any earlier reasons.
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

// Package containerruntime determines which container runtime the kubelet uses and how it is configured.
package containerruntime

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// decoyPatience is the timeout for requests to a runtime that the kubelet does not use.
const decoyPatience = 2 * time.Second

// Inspection is the state of an InspectRuntime request. Its functions return information that is not available in
// files; tests replace them.
type Inspection struct {
	host     hostfs.Host
	programs []process.Process
	result   *api.Runtime
	// decoyBytes is the total size of the files of other containerds.
	decoyBytes int

	Ask  func(ctx context.Context, socket string) (*cri.Info, error)
	Peer func(socket string) (pid int, err error)
	// Run runs a program in a root directory, under the name args[0], and returns the program's standard output.
	Run func(ctx context.Context, root hostfs.FS, program string, args ...string) (string, error)
	// isExit reports whether an error from Run means that the program exited with an error.
	isExit func(error) bool
}

// Inspect determines which container runtime the kubelet uses and how it is configured. Anything that cannot be read
// causes a warning.
func Inspect(ctx context.Context, host hostfs.Host) api.Runtime {
	found, _ := New(host).Found(ctx)
	return found
}

// Found handles InspectRuntime. It also returns all processes.
func (in *Inspection) Found(ctx context.Context) (api.Runtime, []process.Process) {
	in.inspect(ctx)
	in.stopped(ctx)
	return *in.result, in.programs
}

// stopped discards the result if ctx was canceled, because an aborted call looks like a runtime that is down.
func (in *Inspection) stopped(ctx context.Context) {
	if ctx.Err() != nil {
		in.result.Instance, in.result.Problem = nil,
			fmt.Sprintf("the inspection was stopped: %v", context.Cause(ctx))
	}
}

func New(host hostfs.Host) *Inspection {
	return &Inspection{
		host: host, programs: process.All(host.Proc), result: &api.Runtime{},
		Ask: cri.Ask, Peer: peerOf, Run: hostexec.Output, isExit: hostexec.IsExit,
	}
}

func (in *Inspection) inspect(ctx context.Context) {
	r := in.result
	defer in.decoys(ctx) // even without a kubelet, because decoys may explain why the kubelet is missing
	kubelet, problem := process.FindKubelet(in.programs, in.host)
	r.Kubelet = kubelet.Kubelet
	if problem != "" {
		r.Problem = problem
		return
	}
	socket, err := socketPath(kubelet.Kubelet.Endpoint)
	if err != nil {
		r.Problem = err.Error()
		return
	}
	full, err := findSocket(socket, hostfs.FS(in.host.Root), kubelet.Root(in.host))
	if err != nil {
		in.absent(ctx, socket, "the socket does not exist")
		return
	}
	owner, err := in.owner(full, []string{socket, "/" + hostfs.RelativeTo(in.host.Root, full)})
	if err != nil {
		in.absent(ctx, socket, err.Error())
		return
	}
	instance := in.instance(ctx, owner, socket, full)
	r.Instance = &instance
	in.checkRelease(&instance)
	switch {
	case instance.CRI != nil && instance.CRI.Name != "containerd":
		r.Problem = fmt.Sprintf("the kubelet on this node uses %s %s; runtime faults require containerd",
			runtimeName(instance.CRI.Name), instance.CRI.Version)
	case instance.CRI == nil && !owner.Is("containerd"):
		r.Problem = fmt.Sprintf(
			"%s (process %d) listens on the kubelet's socket %s, but does not respond and does not seem to be containerd: %s",
			owner.Exe, owner.PID, socket, instance.CRIError,
		)
	}
}

func runtimeName(name string) string {
	if name == "cri-o" {
		return "CRI-O"
	}
	return name
}

// instance describes a running runtime. full is the path at which the helper can reach its socket.
func (in *Inspection) instance(ctx context.Context, p process.Process, socket, full string) api.Instance {
	i := api.Instance{PID: p.PID, Exe: p.Exe, Args: p.Args, Socket: socket, Unit: in.unit(ctx, p)}
	info, err := in.Ask(ctx, full)
	switch {
	case err != nil:
		i.CRIError = err.Error()
		i.Release, _ = in.version(ctx, p)
	default:
		i.CRI, i.Release = info, info.Version
		if info.Name != "containerd" {
			return i // the runtime's configuration has a different format
		}
	}
	in.configure(&i, p.Root(in.host), configPath(p))
	in.executables(&i, p)
	return i
}

// absent handles a kubelet whose runtime does not listen on the socket. The runtime is known if the socket has a
// well-known path, or if a containerd is configured to listen on it.
func (in *Inspection) absent(ctx context.Context, socket, why string) {
	r := in.result
	r.Problem = fmt.Sprintf("no container runtime is listening on %s, which the kubelet uses: %s", socket, why)
	for _, p := range in.programs {
		if p.Is("containerd") && socketOf(p) == socket {
			i := in.instance(ctx, p, socket, hostfs.FS(in.host.Root).Below(socket))
			r.Instance = &i
			in.checkRelease(&i)
			r.Problem += fmt.Sprintf("; containerd (process %d) is not listening on it", p.PID)
			return
		}
	}
	root := hostfs.FS(in.host.Root)
	place, known := placeOf(socket, root)
	if !known {
		return
	}
	i := api.Instance{Socket: socket, CRIError: why}
	i.Release, _ = in.versionOf(ctx, root, place.exe, "containerd")
	in.configure(&i, root, place.root)
	r.Instance = &i
	in.checkRelease(&i)
	r.Problem += fmt.Sprintf("; by convention, the runtime is the containerd of unit %s, which reads "+
		"%s", place.unit, i.ConfigPath)
}

// checkRelease adds a warning if the rules for merging configuration files are unknown for the release.
func (in *Inspection) checkRelease(i *api.Instance) {
	if i.Release == "" && (i.CRI == nil || i.CRI.Name == "containerd") {
		in.warn("the version of this containerd is unknown: its files are interpreted as %s would interpret "+
			"them", i.Config().Release)
	}
}

func (in *Inspection) warn(format string, args ...any) {
	in.result.Warnings = append(in.result.Warnings, fmt.Sprintf(format, args...))
}

func (in *Inspection) warnOnce(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(in.result.Warnings, text) {
		in.result.Warnings = append(in.result.Warnings, text)
	}
}

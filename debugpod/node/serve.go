// Package node implements the helper that runs on a node. It reads one request (see package api), dispatches it to the
// package that handles it, and writes the responses.
package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/containerruntime"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/device"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/diagnose"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hoststate"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/inspect"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/module"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/reset"
)

// readRequest reads the request, which is one line or everything up to the end of the input.
func readRequest(in *bufio.Reader) ([]byte, *api.Error) {
	var raw []byte
	for {
		part, err := in.ReadSlice('\n')
		raw = append(raw, part...)
		switch {
		case len(raw) > api.MaxRequest:
			return nil, api.Errorf(api.CodeBadRequest, "the request is larger than %d bytes", api.MaxRequest)
		case err == nil, errors.Is(err, io.EOF):
			return raw, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, api.Errorf(api.CodeTruncated, "read the request: %v", err)
		}
	}
}

// DebugPod returns the Host as seen by a privileged container with hostPID.
func DebugPod() hostfs.Host {
	return hostfs.Host{
		Root: "/proc/1/root", Proc: "/proc", Kmsg: "/dev/kmsg",
		Enter: func(request []byte) error { return enterNode("/proc", request) },
	}
}

// Entered returns the Host as seen by a process in the node's own namespaces.
func Entered() hostfs.Host { return hostfs.Host{Root: "/", Proc: "/proc", Kmsg: "/dev/kmsg"} }

// ServeEntered is like Serve, but for a process in the node's namespaces. It reads the request from a separate reader;
// in only signals that the client has disconnected.
func ServeEntered(ctx context.Context, request, in io.Reader, out io.Writer, host hostfs.Host) error {
	return serve(ctx, func() ([]byte, *api.Error) { return readRequest(bufio.NewReader(request)) }, in, out, host)
}

// Serve reads one request from in, handles it, and writes the responses to out. It stops when ctx is canceled, or at
// the end of in, which means that the client has disconnected. The error is the reason why the request failed; it is
// also written to out.
func Serve(ctx context.Context, in io.Reader, out io.Writer, host hostfs.Host) error {
	lines := bufio.NewReader(in)
	return serve(ctx, func() ([]byte, *api.Error) { return readRequest(lines) }, lines, out, host)
}

// ServeAttached is like Serve, but reads the request that Attach appended to exe, an executable. The parameter size is
// the size of exe in bytes.
func ServeAttached(
	ctx context.Context, exe io.ReaderAt, size int64, in io.Reader, out io.Writer, host hostfs.Host,
) error {
	return serve(ctx, func() ([]byte, *api.Error) {
		raw, err := api.Detach(exe, size)
		if err != nil {
			return nil, api.Errorf(api.CodeTruncated, "the helper was not received completely: %v", err)
		}
		return raw, nil
	}, in, out, host)
}

func serve(
	ctx context.Context, read func() ([]byte, *api.Error), in io.Reader, out io.Writer, host hostfs.Host,
) (err error) {
	answers := newAnswers(out)
	defer func() {
		// Report a crash in a response: standard output is reserved for responses, and without one, the client would
		// mistake the crash for a lost connection.
		if r := recover(); r != nil {
			err = answers.fail(api.Errorf(api.CodeInternal, "the helper crashed: %v\n%s", r, debug.Stack()))
		}
	}()
	raw, failure := read()
	if failure != nil {
		return answers.fail(failure)
	}
	req, failure := api.DecodeRequest(raw)
	if failure != nil {
		return answers.fail(failure)
	}
	if req.EntersNode() && host.Enter != nil {
		// Enter the namespaces before reading the input, because the program that Enter runs reads the input itself.
		return answers.fail(api.Errorf(api.CodeEnter, "%v", host.Enter(raw)))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel(errors.New("the client stopped the helper or disconnected"))
	}()

	switch {
	case req.Inspect != nil:
		info := inspect.Node(ctx, *req.Inspect, host)
		if req.Inspect.State {
			info.State = stateOf(host, func(format string, args ...any) {
				info.Warnings = append(info.Warnings, fmt.Sprintf(format, args...))
			})
		}
		return answers.done(api.Answer{Info: &info})
	case req.InspectRuntime != nil:
		found := containerruntime.Inspect(ctx, host)
		return answers.done(api.Answer{Runtime: &found})
	case req.Diagnose != nil:
		found := diagnose.Node(ctx, *req.Diagnose, host, sources())
		return answers.done(api.Answer{Diagnosis: &found})
	case req.RemoveFiles != nil:
		removed := hoststate.Remove(hostfs.FS(host.Root), req.RemoveFiles.Digests)
		return answers.done(api.Answer{RemovedFiles: &removed})
	case req.ReadKernelLog != nil:
		found, failure := diagnose.KernelLog(ctx, *req.ReadKernelLog, host)
		return answers.end(api.Answer{KernelLog: found}, failure)
	case req.ChangesFiles():
		return deadMan(ctx, req, host, answers)
	case req.ChangesDevices():
		return answers.end(devices(ctx, req))
	case req.BuildModule != nil:
		built, failure := module.Build(ctx, *req.BuildModule, host)
		return answers.end(api.Answer{Built: built}, failure)
	case req.WriteModule != nil:
		failure := module.Write(ctx, req.Run, *req.WriteModule, host, answers.send)
		return answers.end(api.Answer{}, failure)
	case req.RemoveModule != nil:
		removed, failure := module.Remove(req.Run, host)
		return answers.end(api.Answer{Removed: removed}, failure)
	case req.ResetGPU != nil:
		// A reset that has started is not stopped, even if the client disconnects.
		known := inspect.Node(ctx, api.Inspect{}, host).GPUs
		done, failure := reset.GPU(context.WithoutCancel(ctx), *req.ResetGPU, known, host)
		return answers.end(api.Answer{GPUReset: done}, failure)
	case req.Firewall != nil, req.RemoveFirewall != nil:
		processesOf := func(podUIDs []string) map[string]int { return inspect.ProcessesOf(podUIDs, host) }
		return answers.end(firewall.Do(req, host, processesOf))
	}
	return answers.end(api.Answer{}, kmsg.Write(ctx, req.WriteKmsg.Records, host, answers.send))
}

// devices handles the requests about the kubelet's devices.
func devices(ctx context.Context, req api.Request) (last api.Answer, failure *api.Error) {
	switch {
	case req.ListDevices != nil:
		found := device.List(ctx)
		last.Devices = &found
	case req.FailDevices != nil:
		last.FailedDevices, failure = device.Fail(ctx, req.Run, *req.FailDevices)
	case req.RecoverDevices != nil:
		// Finish even if the client disconnects.
		last.RecoveredDevices, failure = device.Recover(context.WithoutCancel(ctx), req.Run)
	}
	return last, failure
}

// sources returns the functions that diagnose needs from other packages.
func sources() diagnose.Sources {
	return diagnose.Sources{
		Info: func(ctx context.Context, host hostfs.Host) api.Info { return inspect.Node(ctx, api.Inspect{}, host) },
		Runtime: func(ctx context.Context, host hostfs.Host) (api.Runtime, []process.Process) {
			return containerruntime.New(host).Found(ctx)
		},
	}
}

// answers writes responses, one per line.
type answers struct{ to *json.Encoder }

func newAnswers(out io.Writer) *answers {
	to := json.NewEncoder(out)
	to.SetEscapeHTML(false) // the output is never HTML, and escaping would make XML six times as large
	return &answers{to}
}

func (a *answers) send(answer api.Answer) error {
	answer.Protocol = api.Protocol
	if err := a.to.Encode(answer); err != nil {
		return fmt.Errorf("write the response: %w", err)
	}
	return nil
}

func (a *answers) done(answer api.Answer) error {
	answer.Done = true
	return a.send(answer)
}

// end sends the last response, or the failure if there is one.
func (a *answers) end(last api.Answer, failure *api.Error) error {
	if failure != nil {
		return a.fail(failure)
	}
	return a.done(last)
}

func (a *answers) fail(failure *api.Error) error {
	if err := a.send(api.Answer{Error: failure}); err != nil {
		return errors.Join(failure, err)
	}
	return failure
}

// stateOf returns the parts of the node's state that remain after a pod is gone.
func stateOf(host hostfs.Host, warn func(format string, args ...any)) map[string]string {
	state := hoststate.Read(host, warn)
	rules, err := firewall.Rules(host)
	if err != nil {
		warn("the node's firewall and routing rules cannot be read: %v", err)
	}
	maps.Copy(state, rules)
	return state
}

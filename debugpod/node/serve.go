package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"
)

// Host is where the helper finds the node that it works on.
type Host struct {
	// Root is the node's root directory. Through /proc/1/root it is seen with the node's own mounts, and needs no
	// hostPath.
	Root string
	// Proc is /proc of the node's PID namespace.
	Proc string
	// Kmsg is the kernel log's device.
	Kmsg string
	// Enter continues with a request in the node's own namespaces, in which files are changed. It returns only when
	// that fails. Nil: this process is there already.
	Enter func(request []byte) error
}

// DebugPod returns the Host as a privileged container with hostPID sees it.
func DebugPod() Host {
	return Host{
		Root: "/proc/1/root", Proc: "/proc", Kmsg: "/dev/kmsg",
		Enter: func(request []byte) error { return enterNode("/proc", request) },
	}
}

// Entered returns the Host as a process in the node's own namespaces sees it.
func Entered() Host { return Host{Root: "/", Proc: "/proc", Kmsg: "/dev/kmsg"} }

// ServeEntered is Serve for a process that has entered the node: its request comes from another file than the input.
func ServeEntered(ctx context.Context, request, in io.Reader, out io.Writer, host Host) error {
	return serve(ctx, func() ([]byte, *Error) { return readRequest(bufio.NewReader(request)) }, in, out, host)
}

// Serve reads one request from in, does it, and writes the answers to out. It stops when ctx ends or when in ends,
// which means that nobody waits for the answers any more. The error says that the request was not done; out has it too.
func Serve(ctx context.Context, in io.Reader, out io.Writer, host Host) error {
	lines := bufio.NewReader(in)
	return serve(ctx, func() ([]byte, *Error) { return readRequest(lines) }, lines, out, host)
}

// ServeAttached is Serve for a request that Attach put at the end of exe, an executable of size bytes.
func ServeAttached(ctx context.Context, exe io.ReaderAt, size int64, in io.Reader, out io.Writer, host Host) error {
	return serve(ctx, func() ([]byte, *Error) {
		raw, err := detach(exe, size)
		if err != nil {
			return nil, errorf(CodeTruncated, "the helper did not arrive whole: %v", err)
		}
		return raw, nil
	}, in, out, host)
}

func serve(ctx context.Context, read func() ([]byte, *Error), in io.Reader, out io.Writer, host Host) (err error) {
	answers := newAnswers(out)
	defer func() {
		// Standard output belongs to answers, and silence would look like a lost connection.
		if r := recover(); r != nil {
			err = answers.fail(errorf(CodeInternal, "the helper crashed: %v\n%s", r, debug.Stack()))
		}
	}()
	raw, failure := read()
	if failure != nil {
		return answers.fail(failure)
	}
	req, failure := decodeRequest(raw)
	if failure != nil {
		return answers.fail(failure)
	}
	if req.changesFiles() && host.Enter != nil {
		// Before anything reads the input: it is the other program's.
		return answers.fail(errorf(CodeEnter, "%v", host.Enter(raw)))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel(errors.New("the client told the helper to stop, or is gone"))
	}()

	switch {
	case req.Inspect != nil:
		info := inspect(ctx, *req.Inspect, host)
		return answers.done(Answer{Info: &info})
	case req.InspectRuntime != nil:
		found := inspectRuntime(ctx, host)
		return answers.done(Answer{Runtime: &found})
	case req.Diagnose != nil:
		found := diagnose(ctx, *req.Diagnose, host)
		found.fit(MaxAnswer)
		return answers.done(Answer{Diagnosis: &found})
	case req.changesFiles():
		return deadMan(ctx, req, host, answers)
	case req.BuildModule != nil:
		built, failure := buildModule(ctx, *req.BuildModule, host)
		return answers.end(Answer{Built: built}, failure)
	case req.WriteModule != nil:
		failure := writeModule(ctx, req.Run, *req.WriteModule, host, thisKernel(), answers.send)
		return answers.end(Answer{}, failure)
	case req.RemoveModule != nil:
		removed, failure := removeModule(req.Run, host, thisKernel())
		return answers.end(Answer{Removed: removed}, failure)
	case req.Firewall != nil, req.RemoveFirewall != nil:
		return answers.end(doFirewall(req, host))
	}
	return answers.end(Answer{}, writeKmsg(ctx, req.WriteKmsg.Records, host, answers.send))
}

// answers writes the answers' lines.
type answers struct{ to *json.Encoder }

func newAnswers(out io.Writer) *answers {
	to := json.NewEncoder(out)
	to.SetEscapeHTML(false) // nobody takes it for HTML, and XML would become six times as long
	return &answers{to}
}

func (a *answers) send(answer Answer) error {
	answer.Protocol = Protocol
	if err := a.to.Encode(answer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func (a *answers) done(answer Answer) error {
	answer.Done = true
	return a.send(answer)
}

// end is done, or fail where there is a failure.
func (a *answers) end(last Answer, failure *Error) error {
	if failure != nil {
		return a.fail(failure)
	}
	return a.done(last)
}

func (a *answers) fail(failure *Error) error {
	if err := a.send(Answer{Error: failure}); err != nil {
		return errors.Join(failure, err)
	}
	return failure
}

// sleep waits until then, or returns why ctx ended.
func sleep(ctx context.Context, then time.Time) error {
	timer := time.NewTimer(time.Until(then))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package exercise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
)

// Isolation describes how a program is isolated from the trainer.
type Isolation struct {
	// Off runs the program as the trainer's user, with access to everything that the trainer can access.
	Off bool
	// Dir is the host directory with the program's files. It is the program's working directory, and is read-only.
	Dir string
	// Env lists the names of the trainer's environment variables that the program gets.
	Env []string
	// Hosts lists the hosts that the program may connect to, in addition to the API server.
	Hosts sandbox.Hosts
	// Hidden are files that the program must not read, even if they are in Dir.
	Hidden []string
}

// place is the environment in which a program runs: a sandbox, or this machine.
type place struct {
	isolation Isolation
	sandbox   *sandbox.Sandbox // nil means this machine
	// own is the directory for the program's task; seen is its path inside the sandbox.
	base, own, seen string
}

// newPlace creates an empty place. The caller must remove it.
func newPlace(isolation Isolation) (*place, error) {
	base, err := os.MkdirTemp("", "task-")
	if err != nil {
		return nil, err
	}
	p := &place{isolation: isolation, base: base, own: filepath.Join(base, "task")}
	p.seen = p.own
	err = os.Mkdir(p.own, 0o700)
	if err == nil && !isolation.Off {
		p.seen = sandbox.Dir
		p.sandbox, err = sandbox.New(2)
	}
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}

func (p *place) remove() error {
	var err error
	if p.sandbox != nil {
		err = p.sandbox.Close()
	}
	return errors.Join(err, os.RemoveAll(p.base))
}

// listener accepts the program's connections to the API server; nil means that any local connection is accepted.
func (p *place) listener() net.Listener {
	if p.sandbox == nil {
		return nil
	}
	return p.sandbox.Listeners[0]
}

// run runs the command until it exits or ctx is done. task contains the environment variables for the program's task.
func (p *place) run(ctx context.Context, command string, task []string, w io.Writer) (sandbox.Result, error) {
	output := &quoted{w: w}
	if output.w == nil {
		output.w = io.Discard
	}
	defer output.end()
	if p.sandbox == nil {
		return runHere(ctx, p.own, command, append(environment(), task...), output), nil
	}
	env := append(p.environment(), task...)
	if len(p.isolation.Hosts) > 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go p.isolation.Hosts.Serve(ctx, p.sandbox.Listeners[1])
		proxy := "http://" + p.sandbox.Listeners[1].Addr().String()
		env = append(env, "HTTPS_PROXY="+proxy, "https_proxy="+proxy, "NO_PROXY=127.0.0.1,localhost",
			"no_proxy=127.0.0.1,localhost")
	}
	var read []string
	if p.isolation.Dir != "" {
		read = []string{p.isolation.Dir}
	}
	return p.sandbox.Run(ctx, sandbox.Program{
		Command: command, Env: env, Own: p.own, Read: read, Hidden: p.isolation.Hidden, Output: output,
	})
}

// environment returns the environment for a program in a sandbox.
func (p *place) environment() []string {
	env := []string{"HOME=" + sandbox.Dir, "USER=agent", "LOGNAME=agent", "SHELL=/bin/sh", "TMPDIR=/tmp"}
	for _, name := range slices.Concat([]string{"PATH", "LANG", "LC_ALL", "TZ", "TERM"}, p.isolation.Env) {
		if value, is := os.LookupEnv(name); is {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// runHere runs the command as this process's user.
func runHere(ctx context.Context, dir, command string, env []string, output io.Writer) sandbox.Result {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, output, output, env
	cmd.WaitDelay = 5 * time.Second // do not wait longer for processes that keep its streams open
	alone(cmd)
	err := cmd.Run()
	if cmd.Process != nil {
		_ = cmd.Cancel() // stop processes that the program started, so that they do not run during grading
	}
	result := sandbox.Result{Exit: -1, Took: time.Since(began), Unseen: "the program was not isolated"}
	if err != nil && cmd.ProcessState == nil {
		_, _ = fmt.Fprintf(output, "%s: %v\n", command, err)
		return result
	}
	result.Exit = cmd.ProcessState.ExitCode()
	return result
}

// environment returns this process's environment without the variables that configure kubectl and this tool.
func environment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "KUBE") && !strings.HasPrefix(name, "GPU_FAULT") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// quoted prefixes each line of a program's output with a bar, to distinguish it from this tool's own output.
type quoted struct {
	w   io.Writer
	mid bool // the output is in the middle of a line
}

func (q *quoted) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if !q.mid {
			_, _ = io.WriteString(q.w, "| ")
		}
		if _, err := q.w.Write(line); err != nil {
			return 0, err
		}
		q.mid = !bytes.HasSuffix(line, []byte("\n"))
	}
	return len(text), nil
}

func (q *quoted) end() {
	if q.mid {
		_, _ = q.Write([]byte("\n"))
	}
}

//go:build shim

package shim

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// actor is a running cudafault/probe/actor.c.
type actor struct {
	t       *testing.T
	pid     int
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string
	stderr  *stderr
}

// stderr can be read while the process still writes it.
type stderr struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *stderr) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(data)
}

func (s *stderr) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// actor starts one with the shim, in a process of its own; it ends with the test.
func (p *pod) actor() *actor {
	p.t.Helper()
	p.env["LD_PRELOAD"] = p.on.library(p.t)
	return p.start(p.program("actor"))
}

func (p *pod) start(name string) *actor {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &actor{t: p.t, cmd: p.command(ctx, name), answers: make(chan string, 1), stderr: &stderr{}}
	in, err := a.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	a.in, a.cmd.Stderr = in, a.stderr
	if err := a.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		in.Close()
		cancel()
		_ = a.cmd.Wait()
	})
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			a.answers <- lines.Text()
		}
		close(a.answers)
	}()
	if _, err := fmt.Sscanf(a.answer("start"), "ready %d", &a.pid); err != nil {
		p.t.Fatalf("%s did not start: %v\n%s", name, err, a.stderr.String())
	}
	return a
}

// tell gives a command without waiting for its answer.
func (a *actor) tell(command string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.in, command); err != nil {
		a.t.Fatalf("%s: %v\n%s", command, err, a.stderr)
	}
}

// answer waits for the answer to the oldest command that has none.
func (a *actor) answer(command string) string {
	a.t.Helper()
	select {
	case line, ok := <-a.answers:
		if !ok {
			_ = a.cmd.Wait()
			a.t.Fatalf("%s: the process ended: %v\n%s", command, a.cmd.ProcessState, a.stderr.String())
		}
		return line
	case <-time.After(30 * time.Second):
		a.t.Fatalf("%s: no answer for 30 s", command)
		return ""
	}
}

// ask gives a command and waits for its answer.
func (a *actor) ask(command string, args ...any) string {
	a.t.Helper()
	command = fmt.Sprintf(command, args...)
	a.tell(command)
	return a.answer(command)
}

// want asks and compares.
func (a *actor) want(command, want string) {
	a.t.Helper()
	if got := a.ask("%s", command); got != want {
		a.t.Errorf("%s: %s, want %s", command, got, want)
	}
}

// until calls until the code comes, for at most 5 s, and gives back how long it took.
func (a *actor) until(call string, code int) time.Duration {
	a.t.Helper()
	answer := strings.Fields(a.ask("until %s %d 5000", call, code))
	if len(answer) != 3 || answer[0] != strconv.Itoa(code) {
		a.t.Fatalf("%s did not return %d within 5 s: %s\n%s", call, code, answer, a.stderr)
	}
	ms, err := strconv.Atoi(answer[2])
	if err != nil {
		a.t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// end lets the process end, and gives back what it wrote to stderr.
func (a *actor) end() string {
	a.t.Helper()
	a.in.Close()
	for range a.answers { // until it closes its stdout
	}
	_ = a.cmd.Wait()
	return a.stderr.String()
}

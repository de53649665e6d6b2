package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// client is one process of the plugin.
type client struct {
	cmd     *exec.Cmd
	started time.Time
	exited  chan struct{}
	stdout  bytes.Buffer // to be read when it has exited
	stderr  watched
}

// launch starts the plugin with a kubeconfig and the ledger of the site. Each line of its stderr goes to line, which
// may be nil and must not wait for the client.
func (s *site) launch(kubeconfig string, line func(*client, string), args ...string) (*client, error) {
	c := &client{cmd: exec.CommandContext(s.ctx, s.world.plugin, args...), started: time.Now(),
		exited: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECTL_GPU_FAULT_LEDGER_NAMESPACE="+s.ledger)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.WaitDelay = time.Second
	if line != nil {
		c.stderr.line = func(text string) { line(c, text) }
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the plugin: %w", err)
	}
	go func() {
		_ = c.cmd.Wait() // its exit code is looked at
		close(c.exited)
	}()
	return c, nil
}

// kill ends the client at once.
func (c *client) kill() { _ = c.cmd.Process.Kill() }

// wait waits until the client has ended and tells the site what it said.
func (c *client) wait(s *site) (code int) {
	<-c.exited
	s.took(time.Since(c.started))
	code = c.cmd.ProcessState.ExitCode()
	s.say("$ kubectl gpu-fault %s   # exit %d\n%s%s", strings.Join(c.cmd.Args[1:], " "), code, c.stdout.String(),
		c.stderr.text())
	return code
}

// await waits until the client has said what is waited for. It may have ended when a busy machine gets to look.
func (c *client) await(said <-chan struct{}) error {
	select {
	case <-said:
		return nil
	case <-c.exited:
	}
	select {
	case <-said:
		return nil
	default:
		return fmt.Errorf("the client ended before it changed anything: %s", c.stderr.text())
	}
}

// plugin runs the plugin to its end, directly at the API server.
func (s *site) plugin(args ...string) (stdout, stderr string, code int, err error) {
	c, err := s.launch(s.world.kubeconfig, nil, args...)
	if err != nil {
		return "", "", 0, err
	}
	code = c.wait(s)
	return c.stdout.String(), c.stderr.text(), code, s.ctx.Err()
}

// must runs the plugin and expects that it succeeds.
func (s *site) must(args ...string) (stdout string, err error) {
	stdout, stderr, code, err := s.plugin(args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("`kubectl gpu-fault %s` exits with %d: %s", strings.Join(args, " "), code,
			strings.TrimSpace(stderr))
	}
	return stdout, err
}

// watched is a buffer that hands on lines as they are complete.
type watched struct {
	line func(string)

	mu   sync.Mutex
	all  bytes.Buffer
	rest string
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.all.Write(p)
	lines := strings.Split(w.rest+string(p), "\n")
	w.rest = lines[len(lines)-1]
	w.mu.Unlock()
	for _, text := range lines[:len(lines)-1] {
		if w.line != nil {
			w.line(text)
		}
	}
	return len(p), nil
}

func (w *watched) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

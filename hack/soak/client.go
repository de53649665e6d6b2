package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Limits for the growth of a client that runs all the time, relative to its size after the first minute.
const (
	growthMiB        = 20
	growthGoroutines = 5
)

// client is a long-running process of the program.
type client struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}

	mu       sync.Mutex
	current  int // process ID; 0 means none
	failures []string
	done     chan struct{}
}

// usage is the resource usage of a process at one point in time.
type usage struct {
	mib   float64
	files int
}

var resident = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

func (c *client) usage() usage {
	c.mu.Lock()
	pid := c.current
	c.mu.Unlock()
	if pid == 0 {
		return usage{}
	}
	var u usage
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if found := resident.FindSubmatch(text); found != nil {
		kib, _ := strconv.ParseFloat(string(found[1]), 64)
		u.mib = kib / 1024
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	u.files = len(files)
	return u
}

func (c *client) setCurrent(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = pid
}

// watch opens a run on the node and watches the run. The watcher sees everything that the other faults do to the node.
func (s *soak) watch(ctx context.Context) (*client, error) {
	if _, err := s.ours(ctx, "xid", "79", s.node, "--gpu", "0", "--ttl", "24h", "--yes"); err != nil {
		return nil, err
	}
	runs, err := s.runs(ctx)
	if err != nil || len(runs) != 1 {
		return nil, fmt.Errorf("%d runs are open, expected 1: %w", len(runs), err)
	}
	s.long = runs[0]
	return s.follow(ctx)
}

func (s *soak) follow(ctx context.Context) (*client, error) {
	c := &client{ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, s.plugin, "--kubeconfig", s.kubeconfig, "watch", s.long)
	c.cmd.Stderr = &c.stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.setCurrent(c.cmd.Process.Pid)
	go func() {
		_ = c.cmd.Wait()
		c.setCurrent(0)
		close(c.ended)
	}()
	return c, nil
}

// goroutines compares the goroutines of the old watcher with those of a new one, and terminates both with SIGQUIT, on
// which a Go program prints its goroutines.
func (s *soak) goroutines(ctx context.Context, old *client) {
	fresh, err := s.follow(ctx)
	if err != nil {
		s.fail("start a second watcher: %v", err)
		return
	}
	time.Sleep(10 * time.Second) // it does not report when it has read everything
	before, now := fresh.usage(), old.usage()
	count := func(c *client) int {
		_ = c.cmd.Process.Signal(syscall.SIGQUIT)
		<-c.ended
		return strings.Count(c.stderr.String(), "\ngoroutine ")
	}
	few, many := count(fresh), count(old)
	fmt.Printf("watch, old and new process: %d and %d goroutines, %.1f and %.1f MiB, %d and %d open files\n", many, few,
		now.mib, before.mib, now.files, before.files)
	if few == 0 || many == 0 {
		s.fail("the watcher exited early: %s", old.stderr.String())
	}
	if many > few+growthGoroutines {
		s.leak("goroutines of watch", fmt.Sprintf("%d, compared with %d in a new process", many, few))
	}
	if now.mib > before.mib+growthMiB {
		s.leak("memory of watch", fmt.Sprintf("%.1f MiB, compared with %.1f MiB in a new process", now.mib, before.mib))
	}
	if now.files > before.files+growthGoroutines {
		s.leak("open files of watch", fmt.Sprintf("%d, compared with %d in a new process", now.files, before.files))
	}
}

// growth compares the minimum and maximum of the memory and the open files of the experiments' client.
func (s *soak) growth() {
	var least, most usage
	for _, p := range s.samples {
		u := p.repeats
		if u.files == 0 {
			continue // between two processes
		}
		if least.files == 0 {
			least = u
		}
		least = usage{min(least.mib, u.mib), min(least.files, u.files)}
		most = usage{max(most.mib, u.mib), max(most.files, u.files)}
	}
	fmt.Printf("run, minimum and maximum: %.1f and %.1f MiB, %d and %d open files\n", least.mib, most.mib, least.files,
		most.files)
	if most.mib > least.mib+growthMiB {
		s.leak("memory of run", fmt.Sprintf("%.1f to %.1f MiB", least.mib, most.mib))
	}
	if most.files > least.files+growthGoroutines {
		s.leak("open files of run", fmt.Sprintf("%d to %d", least.files, most.files))
	}
}

// batch is the number of repeats in one process: node-problem-detector stops writing Events after 25 of them, and is
// therefore restarted between processes.
const batch = 10

// experiments repeats the xid-detection experiment on the other node, in the background.
func (s *soak) experiments(ctx context.Context) *client {
	c := &client{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for left := s.repeats; left > 0 && ctx.Err() == nil; left -= batch {
			if err := s.experiment(ctx, c, min(left, batch)); err != nil && ctx.Err() == nil {
				c.failures = append(c.failures, err.Error())
			}
		}
	}()
	return c
}

// wait waits for the repeats, and returns the failures.
func (c *client) wait() []string {
	<-c.done
	return c.failures
}

func (s *soak) experiment(ctx context.Context, c *client, repeat int) error {
	if _, err := s.onNode(ctx, s.other, "systemctl restart node-problem-detector"); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // it drops lines from about the time of its start
	text, err := s.ours(ctx, "run", "xid-detection", "--explain")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "gpu-fault-soak-*.yaml")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	if _, err := fmt.Fprintf(file, "%s\nrepeat: %d\n", text, repeat); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.plugin, "--kubeconfig", s.kubeconfig, "--ledger-namespace", experimentsNamespace,
		"run", "-f", file.Name(), "--node", s.other, "--yes", "--allow-control-plane", "--allow-majority", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	c.setCurrent(cmd.Process.Pid)
	err = cmd.Wait()
	c.setCurrent(0)
	if err != nil {
		said := stderr.String()
		return fmt.Errorf("xid-detection, %d repeats: %w: %s", repeat, err, said[max(0, len(said)-1500):])
	}
	return nil
}

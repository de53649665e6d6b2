package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// kind is a use of the tool whose client is killed at each of its steps.
type kind struct {
	name string
	// prepare makes what the command needs; nil: nothing.
	prepare func(s *site) error
	command func(s *site) []string
	// phases are when it is killed too, while the node is at work.
	phases []phase
	// execs is how many of its execs are steps of their own. A restart of the runtime cuts the connection, and how
	// often the client then tries again depends on the machine.
	execs int
}

func kinds() []kind {
	brk := func(flags ...string) func(*site) []string {
		return func(s *site) []string {
			return append([]string{
				"runtime", "break", s.node.name, "--mode", "missing-handler", "--ttl", "10m", "--yes",
			}, flags...)
		}
	}
	return slices.Concat([]kind{
		{
			name:    "xid 79",
			command: func(s *site) []string { return []string{"xid", "79", s.node.name, "--yes"} },
			phases:  []phase{says("debug pod running")},
			execs:   2,
		},
		{
			name:    "runtime break",
			command: brk(),
			phases: []phase{
				says("debug pod running"), recorded, changed, says("configuration changed"), stopped,
				says("container runtime responds again"),
			},
			execs: 3,
		},
		{
			name:    "runtime break --no-restart",
			command: brk("--no-restart"),
			phases:  []phase{recorded, changed, says("configuration changed")},
			execs:   2,
		},
		{
			name:    "revert of a runtime break",
			prepare: func(s *site) error { _, err := s.broken("--ttl", "10m"); return err },
			command: func(s *site) []string { return []string{"revert", "--all", "--yes"} },
			phases:  []phase{putBack, stopped, says("debug pod running"), says("putting the files back")},
			execs:   3,
		},
	}, deviceKinds(), networkKinds(), cudaKinds(), layerKinds())
}

// isStep reports whether the client's step is one of the matrix.
func (k kind) isStep(name string) bool {
	var n int
	if _, err := fmt.Sscanf(name, "exec %d", &n); err == nil {
		return n <= k.execs
	}
	return !strings.HasPrefix(name, nudge+" ") // it is repeated until the kubelet has done it
}

// learn runs the command without killing it, and returns its steps.
func (k kind) learn(s *site) ([]string, error) {
	if k.prepare != nil {
		if err := k.prepare(s); err != nil {
			return nil, err
		}
	}
	p, err := newProxy(s.world.config, s.dir, func(moment) bool { return false })
	if err != nil {
		return nil, err
	}
	defer p.close()
	c, err := s.launch(p.kubeconfig, nil, k.command(s)...)
	if err != nil {
		return nil, err
	}
	if code := c.wait(s); code != 0 {
		return nil, fmt.Errorf("`kubectl gpu-fault %s` exits with %d: %s", strings.Join(k.command(s), " "), code,
			c.stderr.text())
	}
	var steps []string
	for _, name := range p.seen() {
		if k.isStep(name) {
			steps = append(steps, name)
		}
	}
	return steps, s.reverted()
}

// trials returns the kills at the steps that were learned, and at the phases.
func (k kind) trials(steps []string) []trial {
	var all []trial
	for _, name := range steps {
		for _, side := range []string{before, after} {
			all = append(all,
				trial{k.name, name, side, func(s *site) error { return k.killed(s, at{moment: moment{name, side}}) }})
		}
	}
	for _, phase := range k.phases {
		all = append(all,
			trial{k.name, phase.name, during, func(s *site) error { return k.killed(s, at{phase: phase}) }})
	}
	return all
}

// attempts is how often a step is waited for that a run may do without, such as the deletion of what the cluster may
// delete sooner.
const attempts = 3

// errNever says that a trial could not be made, and so counts for nothing.
var errNever = errors.New("the client never came to this step")

// killed kills the client at some point, and has a fresh process put everything back.
func (k kind) killed(s *site, when at) error {
	for range attempts {
		if k.prepare != nil {
			if err := k.prepare(s); err != nil {
				return err
			}
		}
		came, err := s.killAt(when, k.command(s)...)
		if err != nil {
			return err
		}
		if err := s.reverted(); err != nil || came {
			return err
		}
	}
	return errNever
}

// at is when a client is killed: at a step, or in a phase.
type at struct {
	moment
	phase phase
}

// killAt runs a command and kills its client. came reports whether it got so far.
func (s *site) killAt(when at, command ...string) (came bool, err error) {
	var killed atomic.Bool
	var c *client
	var started sync.Mutex
	started.Lock()
	p, err := newProxy(s.world.config, s.dir, func(now moment) bool {
		if now == when.moment && killed.CompareAndSwap(false, true) {
			started.Lock() // until launch has returned
			defer started.Unlock()
			c.kill()
			<-c.exited
		}
		return killed.Load() && when.step != "" // what else is on its way is lost too
	})
	if err != nil {
		return false, err
	}
	defer p.close()
	c, err = s.launch(p.kubeconfig, func(c *client, line string) {
		if when.phase.said(line) && killed.CompareAndSwap(false, true) {
			c.kill()
		}
	}, command...)
	started.Unlock()
	if err != nil {
		return false, err
	}
	if when.phase.holds != nil {
		when.phase.await(s.node, c.exited, func() { killed.Store(true); c.kill() })
	}
	c.wait(s)
	if killed.Load() {
		s.say("killed: %s %s%s", when.side, when.step, when.phase.name)
	}
	return killed.Load(), nil
}

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const (
	// healsWithin is how late after the TTL a node may be as before, unless the machine is so busy that to break it
	// took longer than that.
	healsWithin = 10 * time.Second
	// tidyWithin is how late after the end of the run the cluster has deleted pods and locks by itself:
	// pkg/fault/ledger waits 45 s, and the controllers take their time.
	tidyWithin = 45*time.Second + patience
	// stopsWithin is how long a kubelet whose runtime serves may take to stop a deleted pod: it comes back to it within
	// a minute and a half.
	stopsWithin = 4 * time.Minute
	// maxStretch bounds how much longer than planned a TTL may become on a busy machine.
	maxStretch = 8
)

// lasting returns the flags of a run whose time is to be up soon, but not before the trial has seen it in place. On a
// machine on which the last attempt was too slow for that it lasts longer.
func (s *site) lasting(ttl time.Duration) []string {
	s.ttl = ttl * time.Duration(s.stretch)
	return []string{"--ttl", s.ttl.String(), "--timeout", (s.ttl + 5*time.Second).String()}
}

// tooShort reports whether a client took so much of the TTL that a trial that failed proves nothing, and a longer one
// may be tried.
func (s *site) tooShort() bool { return s.slowest > s.ttl/2 && s.stretch < maxStretch }

// expiries are clients that die, and nobody reverts.
func expiries() []trial {
	handler := func(s *site) []string {
		return append([]string{"runtime", "break", s.node.name, "--mode", "missing-handler", "--yes"},
			s.lasting(30*time.Second)...)
	}
	loss := func(s *site) []string {
		return append([]string{"runtime", "break", s.node.name, "--mode", "unparsable", "--allow-node-loss", "--yes"},
			s.lasting(40*time.Second)...)
	}
	cell := func(row string, phase phase, command func(*site) []string) trial {
		return trial{
			"the time is up, nobody reverts", row, alone,
			func(s *site) error { return s.expires(phase, command(s)...) },
		}
	}
	return append(cudaExpiries(),
		cell("killed when the debug pod runs", says("debug pod running"), handler),
		cell("killed when the node has the record", recorded, handler),
		cell("killed when the files are changed", changed, handler),
		cell("killed when the runtime serves again", says("container runtime responds again"), handler),
		cell("client finished", phase{}, handler),
		cell("node lost, killed when the files are changed", changed, loss),
		cell("node lost, client finished", phase{}, loss),
	)
}

// expires kills a client when it says something, or lets it finish, and waits until the node has healed and the cluster
// has tidied up.
func (s *site) expires(phase phase, command ...string) error {
	came, err := s.killAt(at{phase: phase}, command...)
	if err != nil {
		return err
	}
	if !came && phase.name != "" {
		if err := s.reverted(); err != nil {
			return err
		}
		return errNever
	}
	run, err := s.run()
	if err != nil {
		return err
	}
	if phase.name == "" && s.node.changes() == nil {
		return errors.New("the break changed nothing, so this proves nothing")
	}
	return errors.Join(s.healed(run), s.forgotten(run))
}

// healed waits until the dead man has put the node back, which must be when the time is up, and the node serves again.
func (s *site) healed(run ledger.Run) error {
	late := max(healsWithin, s.slowest)
	until := run.Until.Add(late)
	if err := eventually(s.ctx, until, s.node.changes); err != nil {
		return fmt.Errorf("%s after the TTL: %w", late, err)
	}
	if early := time.Until(run.Until); early > time.Second {
		s.say("healed %s before the TTL", early.Round(100*time.Millisecond))
	}
	return eventually(s.ctx, until.Add(patience), func() error {
		if found := s.node.processes(); len(found) > 0 {
			return fmt.Errorf("processes are left on %s after the TTL: %v", s.node.name, found)
		}
		return s.node.serves(s.ctx)
	})
}

// forgotten waits until the cluster has deleted the run's pods and locks by itself, and then has a fresh process
// confirm that it is undone.
func (s *site) forgotten(run ledger.Run) error {
	end := run.Until
	if run.Deadline.After(end) {
		end = run.Deadline
	}
	err := s.leave(func() error { return eventually(s.ctx, end.Add(tidyWithin), s.nothingForgotten) })
	if err == nil { // a kubelet whose runtime other trials stop cannot stop a pod: for that the node must be ours again
		err = eventually(s.ctx, time.Now().Add(stopsWithin), s.nothingLeft)
	}
	return errors.Join(err, s.reverted())
}

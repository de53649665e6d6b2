package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const (
	// healsWithin is how late after the TTL a node may be as before.
	healsWithin = 10 * time.Second
	// tidyWithin is how late after the end of the run the cluster has deleted pods and locks by itself:
	// pkg/fault/ledger waits 45 s, and the controllers take their time.
	tidyWithin = 45*time.Second + 45*time.Second
	// stopsWithin is how long a kubelet whose runtime serves may take to stop a deleted pod: it comes back to it within
	// a minute and a half.
	stopsWithin = 2 * time.Minute
)

// expiries are clients that die, and nobody reverts.
func expiries() []trial {
	handler := func(s *site) []string {
		return []string{
			"runtime", "break", s.node.name, "--mode", "missing-handler", "--ttl", "30s", "--timeout", "35s", "--yes",
		}
	}
	loss := func(s *site) []string {
		return []string{
			"runtime", "break", s.node.name, "--mode", "unparsable", "--allow-node-loss", "--ttl", "40s", "--timeout",
			"45s", "--yes",
		}
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
		cell("killed when the runtime serves again", says("container runtime serves again"), handler),
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
	until := run.Until.Add(healsWithin)
	if err := eventually(s.ctx, until, s.node.changes); err != nil {
		return fmt.Errorf("%s after the TTL: %w", healsWithin, err)
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

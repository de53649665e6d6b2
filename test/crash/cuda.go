package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// cudaInject is the group of trials of `cuda inject`, of which nobody reverts some.
const cudaInject = "cuda inject"

// cudaTimes are long enough for a trial. The TTL ends before the client's deadline, which makes the client shorten the
// life of the expiry job.
var cudaTimes = []string{"--ttl", "5m", "--timeout", "3m"}

// inject returns the command line that all trials use.
func inject(s *site, flags ...string) []string {
	return append([]string{
		"cuda", "inject", "deployment/" + deploymentName, "-n", s.app.namespace, "--xid", "79", "--yes",
	}, flags...)
}

// cudaKinds have a Deployment to work on in the place of a node. Their execs only ask the shim, as often as it takes:
// one is enough.
func cudaKinds() []kind {
	return []kind{
		{
			name:    cudaInject,
			prepare: (*site).deploy,
			command: func(s *site) []string { return inject(s, cudaTimes...) },
			phases:  []phase{says("0 started"), says("waiting for processes to notice the change")},
			execs:   1,
		},
		{
			name: "revert of a cuda run",
			prepare: func(s *site) error {
				if err := s.deploy(); err != nil {
					return err
				}
				_, err := s.must(inject(s, cudaTimes...)...)
				return err
			},
			command: func(s *site) []string { return []string{"revert", "--all", "--yes"} },
			phases:  []phase{says("waiting for running processes to notice that they are disarmed")},
			execs:   1,
		},
	}
}

// cudaExpiries are clients of `cuda inject` that die or finish, and nobody reverts before the time is up.
func cudaExpiries() []trial {
	cell := func(row string, when at) trial {
		return trial{cudaInject, row, alone, func(s *site) error { return s.shimExpires(when) }}
	}
	return []trial{
		cell("killed when the shim is armed", at{moment: moment{"save configmap", after}}),
		cell("client finished", at{}),
	}
}

// shimExpires checks that the shim knows when to end, whatever becomes of the client, and that the ledger tells what is
// left to do.
func (s *site) shimExpires(when at) error {
	if err := s.deploy(); err != nil {
		return err
	}
	came, err := s.killAt(when, inject(s, s.lasting(30*time.Second)...)...)
	if err != nil {
		return err
	}
	if !came && when.step != "" {
		return errors.Join(errors.New("the client never armed the shim"), s.reverted())
	}
	run, err := s.run()
	if err != nil {
		return err
	}
	text, err := cudashim.ReadState(s.ctx, s.world.client, s.app.namespace, run.ID)
	if err != nil {
		return err
	}
	state, err := cudafault.DecodeState(text)
	if err == nil && (state.ArmedAt.IsZero() || state.Expires.IsZero() || state.Expires.After(run.Until)) {
		err = fmt.Errorf("the shim was armed at %s and expires at %s; the run's time is up at %s", state.ArmedAt,
			state.Expires, run.Until)
	}
	if err != nil {
		return err
	}
	return s.leave(func() error {
		if err := pause(s.ctx, time.Until(run.Until)); err != nil {
			return err
		}
		list, err := s.must("list")
		if err == nil && !strings.Contains(list, "Expired") {
			err = fmt.Errorf("the time of %s is up, and `list` says: %s", run.ID, list)
		}
		_, revertErr := s.must("revert", "--expired", "--yes")
		return errors.Join(err, revertErr, s.clean())
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// outageLasts is how long the API server is gone.
const outageLasts = time.Minute

// outage is a trial in which the API server is stopped. All of them share one outage, on different nodes.
type outage struct {
	trial // without its run
	begin func(s *site, o *outage) error
	// meanwhile goes on while there is no API server; nil: nothing.
	meanwhile func(s *site, o *outage) error

	run    ledger.Run
	client *client
	site   *site
	start  time.Time
	err    error
}

func outages() []*outage {
	cell := func(column string) trial {
		return trial{group: "disturbed", row: "API server stopped for a minute", column: column}
	}
	return []*outage{
		{trial: cell(during), begin: func(s *site, o *outage) error { return o.breaking(s) }},
		{trial: cell(after), begin: func(s *site, o *outage) (err error) {
			o.run, err = s.broken("--ttl", "10m")
			return err
		}},
		{
			trial: cell(alone),
			begin: func(s *site, o *outage) (err error) {
				o.run, err = s.broken("--ttl", "40s", "--timeout", "40s")
				return err
			},
			meanwhile: func(s *site, o *outage) error { return s.healed(o.run) },
		},
	}
}

// breaking starts a break and returns when the files are changed; the client then loses the API server.
func (o *outage) breaking(s *site) (err error) {
	said := make(chan struct{}, 1)
	o.client, err = s.launch(s.world.kubeconfig, func(_ *client, line string) {
		if strings.Contains(line, "configuration changed") {
			said <- struct{}{}
		}
	}, "runtime", "break", s.node.name, "--mode", "missing-handler", "--ttl", "10m", "--timeout", "20s", "--yes")
	if err != nil {
		return err
	}
	return o.client.await(said)
}

// end reverts when the API server is back. Kubelets look for it at intervals of up to half a minute, and end and start
// no pod before; so does an operator.
func (o *outage) end() error {
	if o.client != nil {
		o.client.wait(o.site)
	}
	if o.column == alone {
		o.run.Deadline = time.Now() // the cluster could tidy up nothing before
		return o.site.forgotten(o.run)
	}
	return errors.Join(eventually(o.site.ctx, time.Now().Add(2*time.Minute), o.site.revert), o.site.clean())
}

// outages performs them all, as many at a time as there are nodes.
func (st *stage) outages(all []*outage) {
	for len(all) > 0 && st.ctx.Err() == nil {
		n := min(len(all), len(st.world.workers))
		st.outage(all[:n])
		all = all[n:]
	}
}

func (st *stage) outage(all []*outage) {
	each := func(which []string, do func(o *outage) error) {
		parallel(all, func(o *outage) {
			if o.err == nil && slices.Contains(which, o.column) {
				o.err = do(o)
			}
		})
	}
	for i, o := range all {
		n := st.world.workers[i]
		n.Lock()
		var cancel context.CancelFunc
		o.start = time.Now()
		o.site, cancel, o.err = st.site(n)
		defer cancel()
		defer n.Unlock()
	}
	// The one that is to be at work when the API server goes comes last.
	each([]string{after, alone}, func(o *outage) error { return o.begin(o.site, o) })
	each([]string{during}, func(o *outage) error { return o.begin(o.site, o) })
	stopErr := st.apiServer("stop")
	back := time.Now().Add(outageLasts)
	each(columns, func(o *outage) error {
		if o.meanwhile == nil {
			return nil
		}
		return o.meanwhile(o.site, o)
	})
	_ = pause(st.ctx, time.Until(back))
	startErr := st.apiServer("start")
	each(columns, func(o *outage) error { return errors.Join(stopErr, startErr, o.end()) })
	for _, o := range all {
		st.note(o.site, o.trial, o.start, o.err)
	}
}

// apiServer starts or stops it; started, it is waited for.
func (st *stage) apiServer(verb string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(st.ctx), 2*time.Minute) // also when the user is impatient
	defer cancel()
	script := "systemctl start kube-apiserver"
	if verb == "stop" {
		// It would take its time
		script = "systemctl stop kube-apiserver & sleep 0.1; systemctl kill -s KILL kube-apiserver; wait"
	}
	if _, err := st.world.control.sh(ctx, script); err != nil || verb == "stop" {
		return err
	}
	client, err := kubernetes.NewForConfig(st.world.config) // without connections to the one before
	if err != nil {
		return err
	}
	return eventually(ctx, time.Now().Add(time.Minute), func() error {
		answer, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("the API server does not come back: %w: %s", err, answer)
		}
		return nil
	})
}

// parallel does all at once, and waits.
func parallel[T any](all []T, do func(T)) {
	var group sync.WaitGroup
	for _, one := range all {
		group.Go(func() { do(one) })
	}
	group.Wait()
}

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// lane is where one job after the other runs, on a cluster that stays for the next one as long as no job fails.
type lane struct {
	*workshop
	number int
	site   site            // of the cluster that runs; empty: none
	swept  bool            // no cluster of an earlier run is left
	built  <-chan struct{} // closed when the programs that jobs run are built
}

// sit waits until the machine has room for a job on the site, and returns what ends that. With more clusters at work
// than two processors can serve, times that tests measure are those of the queue.
func (l *lane) sit(s site) (leave func()) {
	weight := 1
	if s == wide {
		weight = 2
	}
	l.seating.Lock() // or jobs of one seat would pass one that waits for two
	defer l.seating.Unlock()
	return l.pace.sit(weight)
}

// state returns the folder with the cluster's kubeconfig, keys and logs.
func (l *lane) state() string { return filepath.Join(l.dir, fmt.Sprintf("cluster%d", l.number)) }

func (l *lane) kubeconfig() string { return filepath.Join(l.state(), "kubeconfig") }

// env tells scripts and tests which cluster is theirs. Every lane has a network of its own, and by that a PCI domain:
// all clusters of a machine share one kernel log.
func (l *lane) env() []string {
	env := []string{
		"STATE=" + l.state(), fmt.Sprintf("CLUSTER=suite%d", l.number), fmt.Sprintf("SUBNET=10.8%d.0", l.number),
		"KUBECONFIG=" + l.kubeconfig(), "GPU_FAULT_TEST_KUBECONFIG=" + l.kubeconfig(),
		fmt.Sprintf("GPU_FAULT_TEST_SLOWNESS=%.1f", l.pace.slowness()),
	}
	if l.site == wide {
		env = append(env, "NODES=6", "NPD=0", "JOURNALD=0")
	}
	return env
}

// prepare starts the cluster that a job needs, unless it runs.
func (l *lane) prepare(b *bay, wanted site) error {
	if wanted == alone {
		wanted = pair
	}
	if wanted == own || wanted == l.site {
		return nil
	}
	if err := l.down(b.log); err != nil {
		return err
	}
	if err := l.sweep(b.log); err != nil {
		return err
	}
	l.site = wanted
	if err := l.script(b.log, "up"); err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	return nil
}

// scenarios puts what scenarios need into the cluster: a node that a job has killed has lost it.
func (l *lane) scenarios(b *bay) error {
	for _, script := range [][]string{{"addon", "all"}, {"trainer"}} {
		if err := l.script(b.log, script[0], script[1:]...); err != nil {
			return fmt.Errorf("put what scenarios need into the cluster: %w", err)
		}
	}
	return nil
}

// sweep takes down the cluster that an earlier run, maybe of another checkout, left when it was killed. Nobody uses it:
// the workshop holds the machine's lock.
func (l *lane) sweep(log io.Writer) error {
	if l.swept {
		return nil
	}
	if err := l.script(log, "down"); err != nil {
		return fmt.Errorf("take down the cluster of an earlier run: %w", err)
	}
	l.swept = true
	return nil
}

// down takes the cluster down. The error says so if anything of it is left.
func (l *lane) down(log io.Writer) error {
	if l.site == "" {
		return nil
	}
	l.site = ""
	if err := l.script(log, "down"); err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	return nil
}

// evidence is what the services of the cluster's nodes said last.
func (l *lane) evidence(log io.Writer) {
	files, _ := filepath.Glob(filepath.Join(l.state(), "nodes", "*", "log", "*.log"))
	for _, file := range files {
		cmd := exec.Command("tail", "-n", "25", file)
		fmt.Fprintf(log, "--- %s\n", file)
		cmd.Stdout = log
		_ = cmd.Run()
	}
}

// script runs one of test/cluster, also after an interrupt.
func (l *lane) script(log io.Writer, name string, args ...string) error {
	cmd := exec.Command(filepath.Join(l.root, "test", "cluster", name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), l.env()...)
	return cmd.Run()
}

// Command bench measures the project's claims about speed, memory and requests, on the test cluster. Each figure is
// compared, in the same run, either with a floor (the minimum for the same work) or with a peer (another way to do the
// same work). `make bench` prints both figures, their ratio and the limit for the ratio.
//
//	go run ./hack/bench                      all measurements
//	go run ./hack/bench -what xid,doctor     some of them
//	go run ./hack/bench -list                their names, and what each compares
//
// The ways to do the same work take turns, so that other load on the machine affects all of them. The first round warms
// up caches and does not count. The exit code is 1 if a figure exceeds its limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// measurement is one topic, with its default number of rounds.
type measurement struct {
	name   string
	rounds int
	about  string
	run    func(*bench, context.Context) ([]row, error)
}

var measurements = []measurement{
	{"xid", 10, "one verified XID line, compared with a bare pod and kubectl debug", (*bench).measureXID},
	{"runtime", 5, "a broken containerd configuration, compared with a restart from a debug " +
		"pod", (*bench).measureRuntime},
	{"cuda", 5, "the shim in a Deployment, compared with kubectl rollout restart", (*bench).measureCUDA},
	{"device", 5, "an unhealthy GPU, compared with a report by the device plugin itself", (*bench).measureDevice},
	{"doctor", 5, "doctor on one node, compared with a script that uses a debug pod and ten " +
		"execs", (*bench).measureDoctor},
	{"watch", 10, "until an experiment's watcher sees a cordon, compared with a bare watch", (*bench).measureWatch},
	{"shim", 5, "a driver call through the shim, compared with a direct call and with an interposer that uses a toggle file", (*bench).measureShim},
	{"report", 5, "an experiment's report as HTML, compared with the same report as JSON", (*bench).measureReport},
	{"start", 10, "the start of each command, compared with version", (*bench).measureStart},
	{"busy", 100, "xid on a node on which 200 pods are starting", (*bench).measureBusy},
}

func main() {
	b := &bench{}
	what := flag.String("what", "", "measurements, separated by commas (default: all); to print their names, use -list")
	list := flag.Bool("list", false, "list the measurements")
	format := flag.String("o", "table", "table or json")
	flag.IntVar(&b.rounds, "n", 0, "rounds for each measurement (default: depends on the measurement)")
	flag.StringVar(&b.plugin, "plugin", "bin/kubectl-gpu_fault", "the program to measure")
	flag.StringVar(&b.base, "base", "", "another build of the program, with which xid is also compared")
	flag.StringVar(&b.kubectl, "kubectl", "bin/kubectl", "kubectl")
	flag.StringVar(&b.kubeconfig, "kubeconfig", ".cluster/kubeconfig", "kubeconfig of a test cluster (test/cluster)")
	flag.StringVar(&b.node, "node", "node-b", "the node to use")
	flag.StringVar(&b.gpu, "gpu", "0", "the GPU, as for --gpu")
	flag.StringVar(&b.image, "image",
		"registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9",
		"an image that is already on the node")
	flag.Parse()
	if *list {
		for _, m := range measurements {
			fmt.Printf("%-9s %s\n", m.name, m.about)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.main(ctx, *what, *format)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) main(ctx context.Context, what, format string) error {
	chosen, err := choose(what)
	if err != nil {
		return err
	}
	if format != "table" && format != "json" {
		return fmt.Errorf("invalid value %q for -o: supported values: table, json", format)
	}
	leave, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer leave()
	asked := b.rounds
	r := newReport()
	for _, m := range chosen {
		if b.rounds = asked; asked == 0 {
			b.rounds = m.rounds
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", m.name, m.about)
		start := time.Now()
		rows, err := m.run(b, ctx)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", m.name, err), r.print(os.Stdout, format))
		}
		fmt.Fprintf(os.Stderr, "%s: done after %s\n", m.name, time.Since(start).Round(time.Second))
		for i := range rows {
			rows[i].Measurement, rows[i].Rounds = m.name, b.rounds
		}
		r.Items = append(r.Items, rows...)
	}
	if err := r.print(os.Stdout, format); err != nil {
		return err
	}
	return r.verdict()
}

// choose returns the measurements that a list of names selects, in the order of measurements.
func choose(what string) ([]measurement, error) {
	if what == "" {
		return measurements, nil
	}
	names := strings.Split(what, ",")
	var chosen []measurement
	for _, m := range measurements {
		if i := slices.Index(names, m.name); i >= 0 {
			chosen = append(chosen, m)
			names = slices.Delete(names, i, i+1)
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("unknown measurement %q; to print the names, use -list", names[0])
	}
	return chosen, nil
}

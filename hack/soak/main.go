// Command soak injects mixed faults into a node of the test cluster for an hour and reverts them. In the meantime, it
// kills the client and restarts the kubelet and containerd. After each round, nothing of the fault may remain: no run,
// lock, pod, job, process, file or firewall rule. Two clients run all the time, and must not grow: one that watches the
// node, and one that repeats the experiment xid-detection on the other node.
//
//	make soak             an hour (SOAK=15m: shorter)
//
// The last line is `soak: N faults, leaks M`; the exit code is 1 if there are leaks or failures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const namespace = "soak"

type soak struct {
	plugin, kubeconfig string
	node, other        string // node is for the mixed faults, and other for the experiments
	length             time.Duration
	repeats            int
	random             *rand.Rand
	client             kubernetes.Interface

	long     string // the run that is watched all the time
	faults   int
	killed   int
	restarts int
	samples  []sample
	leaks    map[string]bool
	failures []string
}

func main() {
	s := &soak{leaks: map[string]bool{}}
	flag.StringVar(&s.plugin, "plugin", "bin/kubectl-gpu_fault", "the program under test")
	flag.StringVar(&s.kubeconfig, "kubeconfig", ".cluster/kubeconfig", "kubeconfig of a test cluster (test/cluster)")
	flag.StringVar(&s.node, "node", "node-b", "the node for the mixed faults")
	flag.StringVar(&s.other, "other", "node-a", "the node for the experiments")
	flag.DurationVar(&s.length, "for", time.Hour, "duration")
	flag.IntVar(&s.repeats, "repeats", 20, "number of repeats of the xid-detection experiment")
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "seed for the faults, kills and restarts")
	flag.Parse()
	fmt.Fprintf(os.Stderr, "soak: -seed %d\n", *seed)
	s.random = rand.New(rand.NewPCG(*seed, 0)) //nolint:gosec // to repeat it
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func (s *soak) run(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	defer func() {
		_ = s.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
	}()
	watcher, err := s.watch(ctx)
	if err != nil {
		return err
	}
	experiments := s.experiments(ctx)
	for end := time.Now().Add(s.length); time.Now().Before(end) && ctx.Err() == nil; {
		s.round(ctx)
		s.sample(ctx, watcher, experiments)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.failures = append(s.failures, experiments.wait()...)
	s.sample(ctx, watcher, experiments)
	s.goroutines(ctx, watcher)
	s.growth()
	if err := s.revert(ctx, s.long); err != nil {
		s.fail("revert of the watched run: %v", err)
	}
	if _, err := s.ours(ctx, "leftovers", "--nodes"); err != nil {
		s.leak("leftovers", err.Error())
	}
	return s.report()
}

// open connects to the cluster and creates the objects that the faults need.
func (s *soak) open(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	runs, err := s.runs(ctx)
	if err != nil {
		return err
	}
	if len(runs) > 0 {
		return fmt.Errorf("the cluster has open runs (%s): revert them first", strings.Join(runs, ", "))
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := s.until(ctx, "the namespace "+namespace, func() error {
		_, err := s.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := s.until(ctx, "the service account of "+namespace, func() error {
		_, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	return s.deploy(ctx)
}

// state returns the directory of the test cluster.
func (s *soak) state() string { return filepath.Dir(s.kubeconfig) }

// fail records a failure that was not caused by a disturbance.
func (s *soak) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(os.Stderr, "soak: FAILED: %s\n", text)
	s.failures = append(s.failures, text)
}

// leak records a leftover, once.
func (s *soak) leak(what, where string) {
	text := what + ": " + where
	if !s.leaks[text] {
		fmt.Fprintf(os.Stderr, "soak: LEAK: %s\n", text)
		s.leaks[text] = true
	}
}

// until retries for two minutes.
func (s *soak) until(ctx context.Context, what string, try func() error) error {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) || apierrors.IsForbidden(err) {
			return fmt.Errorf("timed out waiting for %s: %w", what, errors.Join(ctx.Err(), err))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// report prints the table and the last line.
func (s *soak) report() error {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "AFTER\tFAULTS\tRUNS\tLOCKS\tPODS\tJOBS\tRECORDS\tEVENTS\tPROCESSES\tFILES\t"+
		"WATCH MiB\tFILES\tRUN MiB\tFILES\t")
	for i, each := 0, max(1, len(s.samples)/20); i < len(s.samples); i += each {
		s.samples[i].print(t)
	}
	if len(s.samples) > 0 {
		s.samples[len(s.samples)-1].print(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d clients killed; %d restarts of services and deletions of debug pods; %d repeats of xid-detection\n",
		s.killed, s.restarts, s.repeats)
	for _, f := range s.failures {
		fmt.Println("failed:", f)
	}
	for l := range s.leaks {
		fmt.Println("leak:", l)
	}
	fmt.Printf("soak: %d faults, leaks %d\n", s.faults, len(s.leaks))
	if n := len(s.leaks) + len(s.failures); n > 0 {
		return fmt.Errorf("%d leaks or failures", n)
	}
	return nil
}

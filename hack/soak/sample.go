package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// The mixed faults and the experiments have separate ledgers, so that leftovers can be attributed to one of them.
const (
	ledgerNamespace      = ledger.DefaultNamespace
	experimentsNamespace = "gpu-fault-experiments"
)

// sample contains the resources that existed at one point in time.
type sample struct {
	after  time.Duration
	faults int
	// Our objects in the cluster: open runs except the watched one, locks, pods, jobs, records, Events.
	runs, locks, pods, jobs, records, events int
	// On the node.
	processes, files int
	watcher, repeats usage
}

func (p sample) print(w io.Writer) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t%d\t%.1f\t%d\t\n",
		p.after.Round(time.Second), p.faults, p.runs, p.locks, p.pods, p.jobs, p.records,
		p.events, p.processes, p.files,
		p.watcher.mib, p.watcher.files,
		p.repeats.mib, p.repeats.files)
}

// start is the time at which the soak began.
var start = time.Now()

func managed() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
}

func (s *soak) sample(ctx context.Context, watcher, experiments *client) {
	p := sample{after: time.Since(start), faults: s.faults, watcher: watcher.usage(), repeats: experiments.usage()}
	left, err := s.left(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.fail("sample: %v", err)
		}
		return
	}
	for _, l := range left {
		switch what, _, _ := strings.Cut(l, " "); what {
		case "run":
			p.runs++
		case "lock":
			p.locks++
		case "pod":
			p.pods++
		case "job":
			p.jobs++
		case "process":
			p.processes++
		case "file":
			p.files++
		}
	}
	if records, err := s.client.CoreV1().ConfigMaps(ledgerNamespace).List(ctx, managed()); err == nil {
		if p.records = len(records.Items); p.records > ledger.HistoryLimit+10 {
			s.leak("records", "more than the history limit")
		}
	}
	events, err := s.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, e := range events.Items {
			if e.Source.Component == ledger.ManagedBy || e.ReportingController == ledger.ManagedBy {
				p.events++
			}
		}
	}
	s.samples = append(s.samples, p)
}

// nothingLeft returns an error that lists the leftovers of the mixed faults.
func (s *soak) nothingLeft(ctx context.Context) error {
	left, err := s.left(ctx)
	if len(left) > 0 {
		err = errors.Join(err, errors.New(strings.Join(left, ", ")))
	}
	return err
}

// left returns the leftovers, each with its kind as the first word. Pods that are being deleted count.
func (s *soak) left(ctx context.Context) ([]string, error) {
	var left []string
	runs, err := s.others(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range runs {
		left = append(left, "run "+id)
	}
	leases, err := s.client.CoordinationV1().Leases(ledgerNamespace).List(ctx, managed())
	if err != nil {
		return nil, err
	}
	for _, o := range leases.Items {
		left = append(left, "lock "+o.Name)
	}
	pods, err := s.client.CoreV1().Pods(ledgerNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range pods.Items {
		left = append(left, describe(o))
	}
	jobs, err := s.client.BatchV1().Jobs(ledgerNamespace).List(ctx, managed())
	if err != nil {
		return nil, err
	}
	for _, o := range jobs.Items {
		if o.Name != s.long { // this Job closes the watched run when its time expires
			left = append(left, "job "+o.Name)
		}
	}
	onNode, err := s.leftOnNode(ctx)
	return append(left, onNode...), err
}

func describe(p corev1.Pod) string { return fmt.Sprintf("pod %s (%s)", p.Name, p.Status.Phase) }

// program matches the command lines of our programs on a node.
var program = regexp.MustCompile(`gpu-fault-(node|deadman|device)`)

func (s *soak) leftOnNode(ctx context.Context) ([]string, error) {
	var left []string
	pid, err := os.ReadFile(filepath.Join(s.state(), "nodes", s.node, "init.pid"))
	if err != nil {
		return nil, err
	}
	files, _ := filepath.Glob("/proc/" + strings.TrimSpace(string(pid)) + "/root/proc/[0-9]*/cmdline")
	for _, file := range files {
		if raw, err := os.ReadFile(file); err == nil && program.Match(raw) {
			left = append(left, "process "+strings.ReplaceAll(strings.Trim(string(raw), "\x00"), "\x00", " "))
		}
	}
	out, err := s.onNode(ctx, s.node,
		"ls -d /var/lib/gpu-fault /run/gpu-fault/*/* /etc/systemd/system/gpu-fault* /var/lib/kubelet/device-plugins/gpu-fault* 2>/dev/null; nft list tables 2>/dev/null | grep gpu-fault-; true")
	for line := range strings.Lines(out) {
		left = append(left, "file "+strings.TrimSpace(line))
	}
	return left, err
}

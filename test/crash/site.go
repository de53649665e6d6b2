package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// patience is for what the cluster does by itself on a busy machine.
const patience = 2 * time.Minute

// site is where one trial takes place: a node that it has alone, and a ledger of its own.
type site struct {
	ctx    context.Context
	world  *world
	node   *node
	ledger string // namespace
	dir    string // for files of the trial
	// app is the trial's Deployment; nil: the fault is one of the node.
	app *deployment
	gpu bool // the trial has one of the node's GPUs
	// ttl is that of the trial's run whose time is to be up, stretch how many times what was planned.
	ttl     time.Duration
	stretch int

	mu      sync.Mutex
	said    strings.Builder
	slowest time.Duration // that a client took
}

// settledNode waits until the node is Ready, and stays so: a kubelet that was restarted says for some seconds that it
// is not, and may not have said so yet.
func (s *site) settledNode() error {
	since := time.Time{}
	return eventually(s.ctx, time.Now().Add(2*time.Minute), func() error {
		n, err := s.world.client.CoreV1().Nodes().Get(s.ctx, s.node.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				since = time.Time{}
				return fmt.Errorf("node %s is not Ready: %s", s.node.name, c.Message)
			}
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < 1500*time.Millisecond {
			return fmt.Errorf("node %s is Ready only since %s", s.node.name, since)
		}
		return nil
	})
}

// say keeps text for the report of a trial that fails.
func (s *site) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(&s.said, format+"\n", args...)
}

// took keeps how long a client ran, if none has run longer.
func (s *site) took(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = max(s.slowest, d)
}

// leave lets other trials work on the node meanwhile.
func (s *site) leave(wait func() error) error {
	s.node.Unlock()
	defer s.node.Lock()
	return wait()
}

// broken breaks the node's runtime in the way that all trials use, and returns the run.
func (s *site) broken(flags ...string) (ledger.Run, error) {
	if _, err := s.must(
		append([]string{"runtime", "break", s.node.name, "--mode", "missing-handler", "--yes"}, flags...)...,
	); err != nil {
		return ledger.Run{}, err
	}
	if s.node.changes() == nil {
		return ledger.Run{}, errors.New("the break changed nothing, so this proves nothing")
	}
	return s.run()
}

// run returns the only open run in the ledger.
func (s *site) run() (ledger.Run, error) {
	runs, err := s.runs()
	if err != nil || len(runs) == 1 {
		return append(runs, ledger.Run{})[0], err
	}
	return ledger.Run{}, fmt.Errorf("the ledger has %d open runs, wanted 1", len(runs))
}

// runs returns the open runs in the ledger.
func (s *site) runs() ([]ledger.Run, error) {
	stdout, err := s.must("list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []ledger.Run `json:"items"`
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		return nil, fmt.Errorf("what `list -o json` prints: %w", err)
	}
	return list.Items, nil
}

// revert returns what an operator does who finds a mess: a fresh process, and no --force.
func (s *site) revert() error {
	_, err := s.must("revert", "--all", "--yes")
	return err
}

// reverted reverts, and checks that everything is as it was before. A fault of a Deployment leaves the node to others.
func (s *site) reverted() error {
	if s.app != nil && !s.app.onNode {
		return s.leave(func() error { return errors.Join(s.revert(), s.clean()) })
	}
	if err := s.revert(); err != nil {
		return errors.Join(err, s.clean())
	}
	return s.clean()
}

// clean checks that everything is as it was before. Only what the cluster itself deletes may take a while.
func (s *site) clean() error {
	until := time.Now().Add(patience)
	if s.app != nil {
		var ended error
		if s.app.exercise {
			ended = s.ended()
		}
		if s.app.onNode {
			ended = errors.Join(ended, s.node.changes(), s.settled(until))
		}
		return errors.Join(ended, s.app.restored(s), eventually(s.ctx, until, s.nothingLeft), s.closed())
	}
	return errors.Join(
		s.node.changes(),
		s.settled(until),
		s.closed(),
	)
}

// settled waits until no process, pod, lock, job or firewall rule of ours is left, and the node's runtime serves, and
// its GPUs are healthy.
func (s *site) settled(until time.Time) error {
	return errors.Join(
		eventually(s.ctx, until, func() error {
			if found := s.node.processes(); len(found) > 0 {
				return fmt.Errorf("processes are left on %s: %v", s.node.name, found)
			}
			return nil
		}),
		eventually(s.ctx, until, s.nothingLeft),
		eventually(s.ctx, until, func() error { return s.node.serves(s.ctx) }),
		eventually(s.ctx, until, s.devicesBack),
		s.connected(),
	)
}

// nothingLeft checks that nothing of ours but records is in the cluster.
func (s *site) nothingLeft() error {
	left, stopping, err := s.left()
	return errors.Join(err, leftover(append(left, stopping...)))
}

// nothingForgotten is nothingLeft, but for pods that are deleted and that their node has yet to stop.
func (s *site) nothingForgotten() error {
	left, _, err := s.left()
	return errors.Join(err, leftover(left))
}

func leftover(left []string) error {
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("left in the cluster: %s", strings.Join(left, ", "))
}

// left returns what is in the cluster of ours but records, and the pods that are deleted and that their node has yet to
// stop.
func (s *site) left() (left, stopping []string, err error) {
	options := metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
	pods, err := s.world.client.CoreV1().Pods(s.ledger).List(s.ctx, options)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range pods.Items {
		if o.DeletionTimestamp != nil {
			stopping = append(stopping, "pod "+describePod(o))
			continue
		}
		left = append(left, "pod "+describePod(o))
	}
	leases, err := s.world.client.CoordinationV1().Leases(s.ledger).List(s.ctx, options)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range leases.Items {
		left = append(left, "lock "+o.Name)
	}
	jobs, err := s.world.client.BatchV1().Jobs(s.ledger).List(s.ctx, options)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range jobs.Items {
		left = append(left, "job "+o.Name)
	}
	return left, stopping, nil
}

// describePod returns a pod with what says who has not done his part: nobody deleted it, or its node has not stopped
// it.
func describePod(pod corev1.Pod) string {
	text := fmt.Sprintf("%s (%s, made at %s", pod.Name, pod.Status.Phase, pod.CreationTimestamp.Format(time.TimeOnly))
	if at := pod.DeletionTimestamp; at != nil {
		text += ", to be gone at " + at.Format(time.TimeOnly)
	}
	if at := pod.Status.StartTime; at != nil {
		text += ", started at " + at.Format(time.TimeOnly)
	}
	if limit := pod.Spec.ActiveDeadlineSeconds; limit != nil {
		text += fmt.Sprintf(", may take %d s", *limit)
	}
	return text + ", it is " + time.Now().UTC().Format(time.TimeOnly) + ")"
}

// closed checks that no run is open.
func (s *site) closed() error {
	open, err := s.runs()
	if err != nil {
		return err
	}
	for _, run := range open {
		err = errors.Join(err,
			fmt.Errorf("run %s is open: %s, step %s: %s", run.ID, run.Phase, run.Steps[0].State, run.Message))
	}
	return err
}

// autopsy adds to the report what is there after a failure.
func (s *site) autopsy() {
	records, err := s.world.client.CoreV1().ConfigMaps(s.ledger).List(s.ctx,
		metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy})
	if err == nil {
		for _, cm := range records.Items {
			text := cm.Data["run.json"]
			s.say("record %s: %s", cm.Name, text[:min(len(text), 3000)])
		}
	}
	node, err := s.node.sh(s.ctx,
		"ls -laR /var/lib/gpu-fault /etc/containerd; cat /var/lib/gpu-fault/*/status.json /var/lib/gpu-fault/*/*.log; systemctl status containerd; tail -n 5 /var/log/services/containerd.log; true")
	s.say("node %s: %v\n%s%v", s.node.name, err, node, s.node.processes())
	pods, err := s.world.client.CoreV1().Pods(s.ledger).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		log, err := s.node.sh(s.ctx, "ctr -n k8s.io tasks ls; grep -h -- "+pod.Name+
			" /var/log/services/kubelet.log /var/log/services/containerd.log | tail -n 40; true")
		s.say("pod %s: %v\n%s", describePod(pod), err, log)
	}
}

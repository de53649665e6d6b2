package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/checks/workload"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Limits of logs.
const (
	logPods     = 40 // of which logs are read
	logAlike    = 2  // of one owner, where they run well
	logLines    = int64(200)
	logBytes    = int64(64 << 10)
	headBytes   = int64(16 << 10) // of a beginning
	logParallel = 8
	logTimeout  = 20 * time.Second
)

// request is the log of one container.
type request struct {
	pod       *corev1.Pod
	container string
	previous  bool
	head      bool
}

// logs reads the ends of logs that may say what is wrong: of components and GPU pods that fail, and of those components
// on suspicious nodes that say what they found of the GPUs. Of GPU pods that run it reads the beginnings of some, as
// far as there is room.
func (c *collector) logs(ctx context.Context) {
	wanted, left := logCandidates(c.s)
	if c.options.NoLogs {
		for _, pod := range append(wanted, left...) {
			if !requestsOf(pod)[0].head {
				c.missing("logs/"+pod.Namespace+"/"+pod.Name, "not asked for")
			}
		}
		return
	}
	for _, pod := range left {
		c.missing("logs/"+pod.Namespace+"/"+pod.Name, "not read: logs of "+count.Of(logPods, "pod")+" like it are")
	}
	var requests []request
	for _, pod := range wanted {
		requests = append(requests, requestsOf(pod)...)
	}
	if len(requests) > 0 {
		c.progress(fmt.Sprintf("reading logs (pods: %d)", len(wanted)))
	}
	texts := make([]string, len(requests))
	got := make([]bool, len(requests))
	var forbidden atomic.Bool // and so are the others
	group := errgroup.Group{}
	group.SetLimit(logParallel)
	for i, r := range requests {
		group.Go(func() error {
			if ctx.Err() != nil || forbidden.Load() {
				return nil
			}
			text, err := c.log(ctx, r)
			switch {
			case err == nil:
				texts[i], got[i] = text, true
			case r.head: // nobody misses it
			case apierrors.IsForbidden(err) && forbidden.CompareAndSwap(false, true):
				c.missing("logs", reason(err))
			case !apierrors.IsForbidden(err) && ctx.Err() == nil && !r.previous:
				c.missing("logs/"+r.pod.Namespace+"/"+r.pod.Name+"/"+r.container, reason(err))
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in Missing
	for i, r := range requests {
		if got[i] {
			c.s.Logs = append(c.s.Logs, snapshot.Log{
				Namespace: r.pod.Namespace, Pod: r.pod.Name, Container: r.container, Previous: r.previous, Head: r.head,
				Text: texts[i],
			})
		}
	}
}

func (c *collector) log(ctx context.Context, r request) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	lines, bytes := logLines, logBytes
	options := &corev1.PodLogOptions{
		Container: r.container, Previous: r.previous, TailLines: &lines, LimitBytes: &bytes,
	}
	if r.head {
		bytes, options.TailLines = headBytes, nil
	}
	stream, err := c.Client.CoreV1().Pods(r.pod.Namespace).GetLogs(r.pod.Name, options).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // read only
	text, err := io.ReadAll(io.LimitReader(stream, bytes))
	if err == nil && snapshot.NoLog(string(text)) {
		return "", errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// logCandidates are pods whose logs are wanted: as many as may be read, and the others. Of pods that are alike, as
// those of one DaemonSet, some come before the others of any. Those that run well come last.
func logCandidates(s *snapshot.Snapshot) (wanted, left []*corev1.Pod) {
	suspects := suspicious(s)
	incomplete := map[string]bool{} // DaemonSets
	for i := range s.DaemonSets {
		ds := &s.DaemonSets[i]
		if ds.Status.NumberReady < ds.Status.DesiredNumberScheduled {
			incomplete[ds.Namespace+"/"+ds.Name] = true
		}
	}
	type candidate struct {
		pod        *corev1.Pod
		turn, rank int
	}
	var all []candidate
	turns := map[string]int{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		rank := logRank(pod, suspects, incomplete)
		if rank < 0 || len(requestsOf(pod)) == 0 {
			continue
		}
		kind := fmt.Sprint(rank, pod.Namespace, ownerOf(pod))
		if rank < rankRunning || turns[kind] < logAlike {
			all = append(all, candidate{pod, turns[kind], rank})
		}
		turns[kind]++
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank/rankRunning, b.rank/rankRunning), cmp.Compare(a.turn, b.turn),
			cmp.Compare(a.rank, b.rank))
	})
	for i, c := range all {
		switch {
		case i < logPods:
			wanted = append(wanted, c.pod)
		case c.rank <= rankFailing:
			left = append(left, c.pod)
		}
	}
	return wanted, left
}

// The ranks of pods whose logs are wanted.
const (
	rankComponent = iota // a component that fails
	rankFailing          // a GPU pod that fails
	rankWitness          // a component that runs, where something else is wrong
	rankRunning          // a GPU pod that runs: where it computes, it says at its beginning
)

// logRank returns how much the pod's log is wanted; less than zero when not.
func logRank(pod *corev1.Pod, suspects []string, incomplete map[string]bool) int {
	component := facts.ComponentOf(pod.Labels, pod.Spec)
	switch {
	case component != "" && !isWell(pod):
		return rankComponent
	case (facts.WantsGPU(pod) || pod.Spec.RuntimeClassName != nil) && !isWell(pod):
		return rankFailing
	case component == "" && facts.WantsGPU(pod) && pod.Status.Phase == corev1.PodRunning:
		return rankRunning
	case component == facts.Operator:
		return rankWitness
	case component == facts.NFD && !strings.Contains(pod.Name, "worker"):
		return rankWitness // it says which labels it refuses
	case !isWitness(component):
		return -1
	case slices.Contains(suspects, pod.Spec.NodeName), incomplete[pod.Namespace+"/"+ownerOf(pod)]:
		return rankWitness
	}
	return -1
}

// isWitness reports whether a component says in its log what it finds of the GPUs.
func isWitness(c facts.Component) bool {
	return slices.Contains([]facts.Component{
		facts.Toolkit, facts.DevicePlugin, facts.FeatureDiscovery, facts.DRADriver, facts.Driver,
		facts.MIGManager, facts.MPS,
	}, c)
}

func ownerOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return owner.Name
	}
	return pod.GenerateName
}

// requestsOf returns the logs of a pod that are wanted: of one that works the beginnings of those of its containers
// with GPUs, and of one that works again both these and the ends.
func requestsOf(pod *corev1.Pod) []request {
	if facts.ComponentOf(pod.Labels, pod.Spec) != "" || !facts.WantsGPU(pod) || !isReady(pod) {
		return logsOf(pod)
	}
	var requests []request
	if !isWell(pod) {
		requests = logsOf(pod)
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; workload.HoldsGPUs(pod, c) {
			requests = append(requests, request{pod: pod, container: c.Name, head: true})
		}
	}
	return requests
}

// logsOf returns the containers of a pod that have written something: they ran, or run. Of a pod that works the init
// containers have nothing more to say, but of the toolkit's.
func logsOf(pod *corev1.Pod) []request {
	var requests []request
	add := func(all []corev1.ContainerStatus, quiet bool) {
		for _, c := range all {
			done := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
			if (c.State.Running != nil || c.State.Terminated != nil) && !(quiet && done) {
				requests = append(requests, request{pod: pod, container: c.Name})
			}
			if c.LastTerminationState.Terminated != nil || c.RestartCount > 0 {
				requests = append(requests, request{pod: pod, container: c.Name, previous: true})
			}
		}
	}
	add(pod.Status.InitContainerStatuses, true)
	add(pod.Status.ContainerStatuses, false)
	return requests
}

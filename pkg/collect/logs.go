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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Limits of logs.
const (
	logPods     = 40 // maximum number of pods
	logAlike    = 2  // maximum number of healthy pods per owner
	logLines    = int64(200)
	logBytes    = int64(64 << 10)
	headBytes   = int64(16 << 10) // maximum size of the beginning of a log
	endLines    = int64(60)       // for a running pod
	logParallel = 8
	logTimeout  = 20 * time.Second
)

// request is a request for the log of one container.
type request struct {
	pod       *corev1.Pod
	container string
	previous  bool
	head      bool
	// well is true for the end of the log of a pod that is running and ready, but whose program may nevertheless fail.
	well bool
}

// logs reads the ends of logs that may explain a problem: logs of failing components and GPU pods, and, on suspicious
// nodes, logs of components that report the GPUs that they detect. It also reads the beginnings and the last lines of
// the logs of some running GPU pods, within the limits.
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
		c.missing("logs/"+pod.Namespace+"/"+pod.Name, "skipped: logs of "+count.Of(logPods, "similar pod")+" were read")
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
	var forbidden atomic.Bool // if a log is forbidden, the other logs are also forbidden
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
			case r.head, r.well: // optional
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
			c.ofFailing = c.ofFailing || !r.head && !r.well
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
	switch {
	case r.head:
		bytes, options.TailLines = headBytes, nil
	case r.well:
		lines = endLines
	}
	stream, err := c.Client.CoreV1().Pods(r.pod.Namespace).GetLogs(r.pod.Name, options).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // read-only
	text, err := io.ReadAll(io.LimitReader(stream, bytes))
	if err == nil && snapshot.NoLog(string(text)) {
		return "", errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// logCandidates returns the pods whose logs are read, up to the limit, and the others. Groups of similar pods, such as
// those of one DaemonSet, take turns, so that one large group does not displace the others. Healthy pods come last.
func logCandidates(s *snapshot.Snapshot) (wanted, left []*corev1.Pod) {
	suspects := suspicious(s)
	incomplete := map[string]bool{} // for DaemonSets
	for i := range s.DaemonSets {
		ds := &s.DaemonSets[i]
		if ds.Status.NumberReady < ds.Status.DesiredNumberScheduled {
			incomplete[ds.Namespace+"/"+ds.Name] = true
		}
	}
	wait := slices.ContainsFunc(s.Pods, func(pod corev1.Pod) bool {
		return facts.Unscheduled(&pod) && (facts.LooksForGPU(&pod) || facts.OtherAccelerator(&pod) != "")
	})
	type candidate struct {
		pod        *corev1.Pod
		turn, rank int
	}
	var all []candidate
	turns := map[string]int{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		rank := logRank(pod, suspects, incomplete, wait)
		if rank < 0 || len(requestsOf(pod)) == 0 {
			continue
		}
		kind := fmt.Sprint(rank, pod.Namespace, ownerOf(pod))
		if rank <= rankWitness || turns[kind] < logAlike {
			all = append(all, candidate{pod, turns[kind], rank})
		}
		turns[kind]++
	}
	sorting.StableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(max(a.rank, rankWitness), max(b.rank, rankWitness)), cmp.Compare(a.turn, b.turn),
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

// Ranks of pods whose logs are read.
const (
	rankComponent = iota // a failing component, or failing third-party software for devices or scheduling
	rankFailing          // a failing pod that requests or searches for a GPU
	rankWitness          // a running component, if something else is wrong
	rankServing          // a healthy pod whose name suggests that it schedules pods or advertises devices
	rankRunning          // a running GPU pod, which logs its device at the beginning
)

// logRank returns the rank of the pod's log, or a negative number to skip it. wait is true if pods that request a GPU
// are not scheduled.
func logRank(pod *corev1.Pod, suspects []string, incomplete map[string]bool, wait bool) int {
	component := facts.ComponentOf(pod.Labels, &pod.Spec)
	switch {
	case (component != "" || facts.Serves(pod)) && !isWell(pod):
		return rankComponent
	case (facts.WantsGPU(pod) || pod.Spec.RuntimeClassName != nil || facts.LooksForGPU(pod) ||
		facts.OtherAccelerator(pod) != "") && !isWell(pod):
		return rankFailing
	case component == "" && facts.Serves(pod) && wait:
		return rankServing // the log contains the reason
	case component == "" && facts.WantsGPU(pod) && pod.Status.Phase == corev1.PodRunning:
		return rankRunning
	case component == facts.Operator:
		return rankWitness
	case component == facts.NFD && !strings.Contains(pod.Name, "worker"):
		return rankWitness // the log contains the rejected labels
	case !isWitness(component):
		return -1
	case slices.Contains(suspects, pod.Spec.NodeName), incomplete[pod.Namespace+"/"+ownerOf(pod)]:
		return rankWitness
	}
	return -1
}

// isWitness reports whether a component logs the GPUs that it detects.
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

// requestsOf returns the log requests for a pod. For a running pod, these are the beginnings and the last lines of the
// logs of containers with GPUs. For a pod that is running again after a failure, these are the beginnings, and the same
// parts as for a failing pod.
func requestsOf(pod *corev1.Pod) []request {
	if facts.ComponentOf(pod.Labels, &pod.Spec) != "" || !facts.WantsGPU(pod) || !facts.RunsReady(pod) {
		return logsOf(pod)
	}
	var requests []request
	if !isWell(pod) {
		requests = logsOf(pod)
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; workload.HoldsGPUs(pod, c) {
			requests = append(requests, request{pod: pod, container: c.Name, head: true})
			if isWell(pod) {
				requests = append(requests, request{pod: pod, container: c.Name, well: true})
			}
		}
	}
	return requests
}

// logsOf returns the containers in a pod that may have logs. In a running pod, it skips init containers, except those
// of the toolkit.
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

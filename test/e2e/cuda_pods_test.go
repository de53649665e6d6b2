//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// pods returns those of a workload that are not on their way out, by node and name.
func (c *cuda) pods(app string) []corev1.Pod {
	c.t.Helper()
	list, err := c.cluster.Client.CoreV1().Pods(c.namespace).List(context.Background(),
		metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		c.t.Fatal(err)
	}
	left := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(left,
		func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName+a.Name, b.Spec.NodeName+b.Name) })
	return left
}

func uids(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for _, p := range pods {
		all = append(all, p.UID)
	}
	return all
}

// log returns what the container has said lately: in the last seconds, or all of it where that is 0.
func (c *cuda) log(pod corev1.Pod, seconds int64) string {
	options := &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name}
	if seconds > 0 {
		options.SinceSeconds = &seconds
	}
	text, err := c.cluster.Client.CoreV1().Pods(c.namespace).GetLogs(pod.Name, options).DoRaw(context.Background())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// healthy waits until the workload has so many pods, and all of them compute. It returns them.
func (c *cuda) healthy(app string, want int) []corev1.Pod {
	c.t.Helper()
	var pods []corev1.Pod
	cluster.Eventually(c.t, patience, fmt.Sprintf("%d healthy pods of %s", want, app), func() (bool, string) {
		pods = c.pods(app)
		if len(pods) != want {
			return false, fmt.Sprintf("%d pods", len(pods))
		}
		for _, p := range pods {
			status := p.Status.ContainerStatuses
			if len(status) == 0 || status[0].State.Running == nil {
				return false, fmt.Sprintf("%s: %s %+v", p.Name, p.Status.Phase, status)
			}
			// A step takes a tenth of a second, and has a line.
			if log := c.log(p, 2); !strings.Contains(log, "\nstep ") && !strings.HasPrefix(log, "step ") {
				return false, p.Name + " says: " + log
			}
		}
		return true, ""
	})
	return pods
}

// cudaStatus is the part of `cuda status -o json` that the tests look at.
type cudaStatus struct {
	Kind  string `json:"kind"`
	Items []struct {
		Run  string    `json:"run"`
		Pods []podView `json:"pods"`
	} `json:"items"`
}

type podView struct {
	Name      string `json:"name"`
	Node      string `json:"node"`
	State     string `json:"state"`
	Processes []struct {
		Name, State, Paths, Function string
		Driver, Hooks, Trips         int
	} `json:"processes"`
}

// statusOf returns the pods of a run, as the status tells.
func (c *cuda) statusOf(run string) []podView {
	c.t.Helper()
	var status cudaStatus
	c.decode(c.ok("cuda", "status", run, "-n", c.namespace, "-o", "json").stdout, &status)
	if status.Kind != "CUDAStatusList" || len(status.Items) != 1 || status.Items[0].Run != run {
		c.t.Fatalf("the status of %s: %+v", run, status)
	}
	return status.Items[0].Pods
}

// crash is the end of a process by a CUDA error.
type crash struct {
	pod, node string
	code      string
}

// crashes are all that were seen of a workload since it began to look.
type crashes struct {
	c    *cuda
	mu   sync.Mutex
	seen []crash
	text map[crash]string
}

var cudaError = regexp.MustCompile(`CUDA error: [^\n]* \((\d+)\)`)

// watchCrashes begins to look at the pods of a workload. How a process ended is in the pod's status only until its
// successor ends.
func (c *cuda) watchCrashes(app string) *crashes {
	c.t.Helper()
	s := &crashes{c: c, text: map[crash]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	watch, err := c.cluster.Client.CoreV1().Pods(c.namespace).Watch(ctx,
		metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cancel(); watch.Stop() })
	go func() {
		for event := range watch.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				s.add(pod)
			}
		}
	}()
	return s
}

func (s *crashes) add(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, status := range pod.Status.ContainerStatuses {
		for _, ended := range []*corev1.ContainerStateTerminated{
			status.State.Terminated, status.LastTerminationState.Terminated,
		} {
			if ended == nil {
				continue
			}
			for _, found := range cudaError.FindAllStringSubmatch(ended.Message, -1) {
				crash := crash{pod.Name, pod.Spec.NodeName, found[1]}
				if !slices.Contains(s.seen, crash) {
					s.seen, s.text[crash] = append(s.seen, crash), ended.Message
				}
			}
		}
	}
}

// has waits until as many pods have ended with the code, and returns what one of them said.
func (s *crashes) has(code, pods int) string {
	s.c.t.Helper()
	text := ""
	cluster.Eventually(s.c.t, patience, fmt.Sprintf("%d pods end with CUDA error %d", pods, code),
		func() (bool, string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			found := 0
			for _, crash := range s.seen {
				if crash.code == fmt.Sprint(code) {
					found++
					text = s.text[crash]
				}
			}
			return found == pods, fmt.Sprint(s.seen)
		})
	return text
}

// all returns those seen so far.
func (s *crashes) all() []crash {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// none checks for a while that nobody ends.
func (s *crashes) none(while time.Duration) {
	s.c.t.Helper()
	for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if seen := s.all(); len(seen) > 0 {
			s.c.t.Fatalf("ended: %v", seen)
		}
	}
}

package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// observer queries the shim in pods. The shim's file is also a program, which prints the status written by the pod's
// processes.
type observer struct {
	client kubernetes.Interface
	execer debugpod.Execer
	// logs returns the end of the log of a container, or of the container's previous instance.
	logs func(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error)
	// every is the interval between queries while waiting.
	every time.Duration

	nodes sync.Once
	archs map[string]string // by node
}

// Limits for querying pods. An exec takes 0.1 s.
const (
	execTimeout   = 15 * time.Second
	parallelExecs = 10
)

// report is the status of the shim in one pod.
type report struct {
	pod        *corev1.Pod
	containers []string // the containers that load the shim
	state      string   // state of a pod that cannot be queried, such as "CrashLoopBackOff"
	// asked reports whether a container responded. file and processes are the contents of the response. The file is nil
	// if the shim has no state in the container.
	asked     bool
	file      *cudafault.State
	processes []cudafault.Process
	// trouble is the reason why there is no usable response.
	trouble string
	// missing reports whether the container lacks the shim's file.
	missing bool
	// said contains the log lines of the shim, and refused contains the dynamic linker's lines about the shim.
	said, refused []string
}

func newObserver(client kubernetes.Interface, execer debugpod.Execer) *observer {
	w := &observer{client: client, execer: execer, every: pause}
	w.logs = w.readLog
	return w
}

// ask queries all pods that are not being deleted, several at a time.
func (w *observer) ask(ctx context.Context, pods []corev1.Pod) []report {
	return w.askUnless(ctx, pods, nil)
}

// podKey identifies a pod, even if a later pod has the same name.
type podKey struct {
	name string
	uid  types.UID
}

func keyOf(pod *corev1.Pod) podKey { return podKey{pod.Name, pod.UID} }

// askUnless is like ask, but reuses the known reports instead of querying those pods again.
func (w *observer) askUnless(ctx context.Context, pods []corev1.Pod, known map[podKey]report) []report {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	sorting.Func(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	reports := make([]report, len(pods))
	var group errgroup.Group
	group.SetLimit(parallelExecs)
	for i := range pods {
		if r, ok := known[keyOf(&pods[i])]; ok {
			reports[i] = r
			continue
		}
		group.Go(func() error {
			reports[i] = w.askPod(ctx, &pods[i])
			return nil
		})
	}
	_ = group.Wait() // errors are in the reports
	return reports
}

// askPod queries one container of a pod, because the report from one container covers all processes of the pod.
func (w *observer) askPod(ctx context.Context, pod *corev1.Pod) report {
	r := report{pod: pod, containers: cudashim.Carriers(pod)}
	running := runningContainers(pod)
	for _, container := range r.containers {
		if !slices.Contains(running, container) {
			continue
		}
		out, err := w.exec(ctx, pod, container)
		if err == nil {
			r.trouble, r.missing = "", false
			r.answer(out)
			return r
		}
		r.trouble, r.missing = explainExec(err)
	}
	if !r.missing {
		r.state = stateOf(pod, r.containers)
	}
	return r
}

// stateOf returns a short description of the state of the containers with the shim, or of their pod.
func stateOf(pod *corev1.Pod, containers []string) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if ended := status.State.Terminated; ended != nil && slices.Contains(containers, status.Name) &&
			pod.DeletionTimestamp == nil {
			return fmt.Sprintf("%s, exit %d", cmp.Or(ended.Reason, "Error"), ended.ExitCode)
		}
	}
	return cudashim.PodState(pod)
}

// answer parses the output of the shim.
func (r *report) answer(out []byte) {
	file, processes, err := cudafault.DecodeReport(out)
	r.asked, r.file = true, file
	if processes != nil {
		r.processes = processes.List
		sorting.StableFunc(r.processes, func(a, b cudafault.Process) int { return a.Started.Compare(b.Started) })
	}
	switch {
	case err != nil:
		r.trouble = err.Error()
	case file == nil:
		r.trouble = "the state file is missing"
	}
}

func (w *observer) exec(ctx context.Context, pod *corev1.Pod, container string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	arch := w.architecture(ctx, pod.Spec.NodeName)
	path := cudashim.ExecPath(pod, arch)
	if path == "" || arch != "" && !hasShim(arch) {
		return nil, errNoShim
	}
	out, said := &bounded{most: mostOutput, full: cancel}, &bounded{most: mostErrors, full: cancel}
	err := w.execer.Exec(ctx, pod, container, []string{path},
		debugpod.Streams{In: strings.NewReader(""), Out: out, Err: said})
	if out.over || said.over { // client-go continues after a failed write, and does not report it
		return nil, errTooMuch
	}
	if text := strings.TrimSpace(said.text.String()); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return out.text.Bytes(), err
}

var errNoShim = errors.New("no shim exists for the architecture of the pod's node")

// hasShim reports whether a shim exists for the architecture.
func hasShim(arch string) bool {
	_, err := cudafault.Library(arch, cudafault.LayerDriver)
	return err == nil
}

// architecture returns the architecture of a node. It is empty if unknown, which matters only in clusters with several
// architectures.
func (w *observer) architecture(ctx context.Context, node string) string {
	w.nodes.Do(func() {
		w.archs = map[string]string{}
		// Read from the API server's cache.
		list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return
		}
		for _, n := range list.Items {
			w.archs[n.Name] = n.Status.NodeInfo.Architecture
		}
	})
	return w.archs[node]
}

// explainExec returns why an exec failed, and whether the shim's file is missing.
func explainExec(err error) (why string, missing bool) {
	text := err.Error()
	switch {
	case apierrors.IsForbidden(err), strings.Contains(text, `resource "pods/exec"`):
		return "you do not have permission to exec into the pod (pods/exec)", false
	case strings.Contains(text, "no such file or directory") && strings.Contains(text, cudashim.LibraryDir):
		return "the shim's file is missing in the container", true
	case strings.Contains(text, "exec format error"):
		return "the shim's file is for a different architecture than the node's", true
	case strings.Contains(text, "container not found"), strings.Contains(text, "is not running"),
		strings.Contains(text, "not created or running"),
		strings.Contains(text, "cannot exec in a stopped"):
		return "", false // the container has just terminated: the state of the pod is more informative
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the shim did not respond within %s", execTimeout), false
	}
	first, _, _ := strings.Cut(text, "\n")
	return first, false
}

// runningContainers returns the names of a pod's running containers.
func runningContainers(pod *corev1.Pod) []string {
	var names []string
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if status.State.Running != nil {
			names = append(names, status.Name)
		}
	}
	return names
}

// startTolerance is the maximum time by which a process may appear to have started before its container. The container
// runtime reads the clock after the process has started: on a busy node, 0.1 s later. The kubelet reports whole
// seconds.
const startTolerance = 2 * time.Second

// runningSince returns the earliest start time, to the second, of the processes in the oldest running container with
// the shim. It returns zero if no such container is running. Earlier reports come from previous instances of the
// containers.
func (r *report) runningSince() time.Time {
	var first time.Time
	for _, status := range slices.Concat(r.pod.Status.ContainerStatuses, r.pod.Status.InitContainerStatuses) {
		if status.State.Running == nil || !slices.Contains(r.containers, status.Name) {
			continue
		}
		at := status.State.Running.StartedAt.Add(-startTolerance)
		if ended := status.LastTerminationState.Terminated; ended != nil && ended.FinishedAt.After(at) {
			at = ended.FinishedAt.Time
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// living returns the processes that may be running. The end of a process is known only if its container has exited.
func (r *report) living() []cudafault.Process {
	since := r.runningSince().Truncate(time.Second)
	var all []cudafault.Process
	for _, p := range r.processes {
		if !p.Started.Before(since) {
			all = append(all, p)
		}
	}
	return all
}

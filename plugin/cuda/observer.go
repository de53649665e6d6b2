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
)

// observer asks pods what the shim in them does: the shim's file, run as a program, prints what the pod's processes
// have written.
type observer struct {
	client kubernetes.Interface
	execer debugpod.Execer
	// logs returns the end of a container's log, of its former life with previous.
	logs func(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error)
	// every is how often pods are asked anew while something is waited for.
	every time.Duration

	nodes sync.Once
	archs map[string]string // by node
}

// Bounds for one question to one pod. An exec takes 0.1 s.
const (
	execTimeout   = 15 * time.Second
	parallelExecs = 10
)

// report is what is known of one pod.
type report struct {
	pod        *corev1.Pod
	containers []string // that load the shim
	state      string   // of the pod, when it cannot be asked: "CrashLoopBackOff"
	// asked reports whether a container answered; file and processes are its answer. The file is nil when the shim has
	// no state there.
	asked     bool
	file      *cudafault.State
	processes []cudafault.Process
	// trouble is why there is no answer, or why it does not help.
	trouble string
	// missing reports whether the shim's file is not in the container.
	missing bool
	// said are the lines of the shim, and refused those of the dynamic linker about it, in the logs.
	said, refused []string
}

func newObserver(client kubernetes.Interface, execer debugpod.Execer) *observer {
	w := &observer{client: client, execer: execer, every: pause}
	w.logs = w.readLog
	return w
}

// ask asks all pods, several at a time. Those that are being deleted are left out.
func (w *observer) ask(ctx context.Context, pods []corev1.Pod) []report {
	return w.askUnless(ctx, pods, nil)
}

// podKey tells pods apart, also those of the same name one after the other.
type podKey struct {
	name string
	uid  types.UID
}

func keyOf(pod *corev1.Pod) podKey { return podKey{pod.Name, pod.UID} }

// askUnless is ask, without the pods of which everything is known.
func (w *observer) askUnless(ctx context.Context, pods []corev1.Pod, known map[podKey]report) []report {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
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
	_ = group.Wait() // what went wrong is in the reports
	return reports
}

// askPod asks one container of a pod: the report is about all processes of the pod.
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

// stateOf says in a word or two what the containers with the shim do, or else their pod.
func stateOf(pod *corev1.Pod, containers []string) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if ended := status.State.Terminated; ended != nil && slices.Contains(containers, status.Name) &&
			pod.DeletionTimestamp == nil {
			return fmt.Sprintf("%s, exit %d", cmp.Or(ended.Reason, "Error"), ended.ExitCode)
		}
	}
	return cudashim.PodState(pod)
}

// answer reads what the shim printed.
func (r *report) answer(out []byte) {
	file, processes, err := cudafault.DecodeReport(out)
	r.asked, r.file = true, file
	if processes != nil {
		r.processes = processes.List
		slices.SortStableFunc(r.processes, func(a, b cudafault.Process) int { return a.Started.Compare(b.Started) })
	}
	switch {
	case err != nil:
		r.trouble = err.Error()
	case file == nil:
		r.trouble = "the state file is not there"
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
	if out.over || said.over { // client-go goes on reading after a failed write, and does not tell of it
		return nil, errTooMuch
	}
	if text := strings.TrimSpace(said.text.String()); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return out.text.Bytes(), err
}

var errNoShim = errors.New("no shim for this node's architecture is known")

// hasShim reports whether there is a shim for an architecture, so that a pod on such a node may have it.
func hasShim(arch string) bool {
	_, err := cudafault.Library(arch, cudafault.LayerDriver)
	return err == nil
}

// architecture returns that of a node; empty when it cannot be told, which matters only on clusters of several.
func (w *observer) architecture(ctx context.Context, node string) string {
	w.nodes.Do(func() {
		w.archs = map[string]string{}
		// From the API server's cache
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

// explainExec returns why an exec failed, and whether because the shim's file is not there.
func explainExec(err error) (why string, missing bool) {
	text := err.Error()
	switch {
	case apierrors.IsForbidden(err), strings.Contains(text, `resource "pods/exec"`):
		return "you may not exec into it (pods/exec)", false
	case strings.Contains(text, "no such file or directory") && strings.Contains(text, cudashim.LibraryDir):
		return "the shim's file is not in the container", true
	case strings.Contains(text, "exec format error"):
		return "the shim's file is for another architecture than the node's", true
	case strings.Contains(text, "container not found"), strings.Contains(text, "is not running"),
		strings.Contains(text, "not created or running"),
		strings.Contains(text, "cannot exec in a stopped"):
		return "", false // it has just ended: the state of the pod says more
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("it did not answer within %s", execTimeout), false
	}
	first, _, _ := strings.Cut(text, "\n")
	return first, false
}

// runningContainers returns the names of those that run now.
func runningContainers(pod *corev1.Pod) []string {
	var names []string
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if status.State.Running != nil {
			names = append(names, status.Name)
		}
	}
	return names
}

// runningSince returns when the first of the carriers that run now was started, to the second; zero when none runs.
// What a process reported before belongs to a former life of its container.
func (r *report) runningSince() time.Time {
	var first time.Time
	for _, status := range slices.Concat(r.pod.Status.ContainerStatuses, r.pod.Status.InitContainerStatuses) {
		if status.State.Running == nil || !slices.Contains(r.containers, status.Name) {
			continue
		}
		if at := status.State.Running.StartedAt.Time; first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// living returns the processes that may be alive: one that ended is known only when its container ended with it.
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

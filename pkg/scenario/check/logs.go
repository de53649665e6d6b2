package check

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

const (
	// maxText is the number of bytes to keep of logs, command output and response bodies.
	maxText = 256 << 10
	// maxRead is the number of bytes to read from one log to find its end.
	maxRead = 4 << 20
	// maxLogs is the maximum number of containers whose logs are read; the newest pods come first.
	maxLogs = 32
	// debugMargin is added to the age of a log, because the clocks of nodes have a resolution of one second.
	debugMargin = 5 * time.Second
	// defaultTail is the default number of lines to read from each log.
	defaultTail = 200
)

// container is a container whose log is read.
type container struct {
	pod      *corev1.Pod
	status   corev1.ContainerStatus
	previous bool
}

// logs reads the end of the log of each container that has started, in the order of pods and containers. If no
// container has started, it returns an error: a missing log must not be mistaken for a log without a certain line.
func (c *Checker) logs(ctx context.Context, l scenario.Logs) (view, error) {
	pods, err := c.pick(ctx, l.Namespace, l.Labels, l.Pod)
	if err != nil {
		return view{}, err
	}
	if c.Guarded {
		if err := untouched(pods, time.Duration(l.Since)); err != nil {
			return view{}, err
		}
	}
	containers := loggable(pods, l)
	if len(containers) == 0 && lacks(pods, l.Container) {
		return view{}, fmt.Errorf("pod %s has no container %q", pods[0].Name, l.Container)
	}
	if len(containers) == 0 {
		return view{},
			fmt.Errorf("no container%s has started: pod %s is %s", named(l.Container), pods[0].Name, podState(&pods[0]))
	}
	var parts []string
	for _, one := range containers {
		text, err := c.log(ctx, one, l, maxText/len(containers))
		if err != nil {
			return view{}, err
		}
		parts = append(parts, text)
	}
	text := strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "\n")
	return view{vars: expr.Vars{"text": text}, evidence: lastLine(text, "the log is empty")}, nil
}

// lacks reports whether none of the pods has a container with this name. It returns false for an empty name.
func lacks(pods []corev1.Pod, name string) bool {
	return name != "" && !slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
		is := func(c corev1.Container) bool { return c.Name == name }
		return slices.ContainsFunc(pod.Spec.InitContainers, is) || slices.ContainsFunc(pod.Spec.Containers, is)
	})
}

func named(container string) string {
	if container == "" {
		return ""
	}
	return " " + container
}

// untouched returns an error if a debug container may have written to the part of the logs that is read.
func untouched(pods []corev1.Pod, since time.Duration) error {
	for _, pod := range pods {
		for _, s := range pod.Status.EphemeralContainerStatuses {
			ended := s.State.Terminated
			switch {
			case s.State.Running == nil && (ended == nil || ended.StartedAt.IsZero()): // the container did not start
			case ended != nil && since > 0 && time.Since(ended.FinishedAt.Time) > since+debugMargin:
			case since > 0:
				return fmt.Errorf("debug container %s ran in pod %s less than %s ago, and may have written to its log: "+
					"terminate the container if it is still running, and grade again later", s.Name, pod.Name, since+debugMargin)
			default:
				return fmt.Errorf("debug container %s ran in pod %s, and may have written to its log: replace the pod",
					s.Name, pod.Name)
			}
		}
	}
	return nil
}

// loggable returns the containers that may have logs.
func loggable(pods []corev1.Pod, l scenario.Logs) []container {
	if len(pods) > maxLogs {
		sorting.StableFunc(pods,
			func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	}
	var all []container
	for i := range pods {
		for _, s := range statuses(&pods[i]) {
			has := s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
			if has && (l.Container == "" || l.Container == s.Name) && len(all) < maxLogs {
				all = append(all, container{
					pod: &pods[i], status: s, previous: l.Previous && s.LastTerminationState.Terminated != nil,
				})
			}
		}
	}
	return all
}

// log reads the end of one container's log. If the pod or the log was deleted in the meantime, it returns "".
func (c *Checker) log(ctx context.Context, of container, l scenario.Logs, most int) (string, error) {
	tail := l.Tail
	if tail <= 0 {
		tail = defaultTail
	}
	options := &corev1.PodLogOptions{
		Container: of.status.Name, Previous: of.previous, TailLines: &tail, LimitBytes: new(int64(maxRead)),
	}
	if l.Since > 0 {
		options.SinceSeconds = new(int64(max(time.Duration(l.Since)/time.Second, 1)))
	}
	body, err := c.Client.CoreV1().Pods(of.pod.Namespace).GetLogs(of.pod.Name, options).Stream(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case apierrors.IsBadRequest(err) && of.previous: // the log was removed since the pods were listed
		of.previous = false
		return c.log(ctx, of, l, most)
	case apierrors.IsBadRequest(err): // the container is waiting to restart
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read log of pod %s/%s, container %s: %w", of.pod.Namespace, of.pod.Name, of.status.Name,
			err)
	}
	defer func() { _ = body.Close() }()
	end := &tailBuffer{most: most}
	if _, err := io.Copy(end, body); err != nil {
		return "", fmt.Errorf("read log of pod %s/%s, container %s: %w", of.pod.Namespace, of.pod.Name, of.status.Name,
			err)
	}
	text := strings.TrimRight(end.String(), "\n")
	// The kubelet reports this error with status 200.
	if strings.HasPrefix(text, "unable to retrieve container logs for ") && !strings.Contains(text, "\n") {
		return "", nil
	}
	return text, nil
}

// tailBuffer keeps the end of the data written to it.
type tailBuffer struct {
	most int
	data []byte
	cut  bool
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - t.most; over > t.most { // to avoid copying on every write
		t.data, t.cut = append(t.data[:0], t.data[over:]...), true
	}
	return len(p), nil
}

// String returns the end of the data, starting at the beginning of a line.
func (t *tailBuffer) String() string {
	if over := len(t.data) - t.most; over > 0 {
		t.data, t.cut = t.data[over:], true
	}
	text := string(t.data)
	if _, rest, more := strings.Cut(text, "\n"); t.cut && more {
		text = rest
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// headBuffer keeps the beginning of the data written to it, and discards the rest without an error.
type headBuffer struct {
	most int
	data []byte
}

func (h *headBuffer) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), max(h.most-len(h.data), 0))]...)
	return len(p), nil
}

func (h *headBuffer) String() string { return strings.ToValidUTF8(string(h.data), "\uFFFD") }

// lastLine returns the last non-empty line, or none.
func lastLine(text, none string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return none
}

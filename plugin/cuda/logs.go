package cuda

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// Limits on the log lines to read. The shim writes its line shortly before a process crashes.
const (
	logLines   = 1000
	logBytes   = 1 << 20
	logTimeout = 10 * time.Second
	// mostLines is the maximum number of lines to show.
	mostLines = 3
	// mostOfLine is the maximum length of a line in bytes.
	mostOfLine   = 500
	parallelLogs = 10
)

// shimPrefix is the prefix of the lines that the shim writes to stderr: "gpu-fault: run RUN: injected CUDA error 999
// into ...".
const shimPrefix = "gpu-fault: run "

// listen collects the lines that the shim wrote, and the lines that are about the shim, from the logs of a pod's
// containers. It includes the logs of previous instances.
func (w *observer) listen(ctx context.Context, r *report, run string) {
	for _, container := range r.containers {
		for _, previous := range []bool{true, false} {
			if previous && !hasFormerLife(r.pod, container) {
				continue
			}
			text, err := w.logs(ctx, r.pod, container, previous)
			if err != nil {
				continue // a container that never started has no log
			}
			said, refused := findLines(string(text), run)
			r.said = append(r.said, said...)
			r.refused = append(r.refused, refused...)
		}
	}
	r.said, r.refused = last(r.said), last(r.refused)
}

// listenWhere calls listen for each pod for which the function where returns true. It processes several pods at a time.
func (w *observer) listenWhere(ctx context.Context, reports []report, run string, where func(*report) bool) {
	var group errgroup.Group
	group.SetLimit(parallelLogs)
	for i := range reports {
		if r := &reports[i]; where(r) {
			group.Go(func() error {
				w.listen(ctx, r, run)
				return nil
			})
		}
	}
	_ = group.Wait() // logs that cannot be read are skipped
}

// findLines returns the lines that the shim of a run wrote, and the lines of a dynamic linker that failed to load it:
// glibc's "object '...' from LD_PRELOAD cannot be preloaded", musl's "Error relocating ..." and "Error loading shared
// library ...".
func findLines(log, run string) (said, refused []string) {
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if i := strings.Index(line, shimPrefix+run+":"); i >= 0 {
			said = append(said, cut(line[i:]))
			continue
		}
		ofLinker := strings.Contains(line, "cannot be preloaded") || strings.Contains(line, "Error relocating") ||
			strings.Contains(line, "Error loading shared library")
		if ofLinker && strings.Contains(line, cudashim.LibraryDir+"/") && !slices.Contains(refused, cut(line)) {
			refused = append(refused, cut(line))
		}
	}
	return said, refused
}

// trip is a parsed line of the shim: "... injected CUDA error 100 into cuInit, call 0, pid 1 (trainer)".
type trip struct{ what, function, pid, process string }

var tripLine = regexp.MustCompile(`: injected (.+) into (\w+), call \d+, pid (\d+) \((.*)\)$`)

func parseTrip(line string) (trip, bool) {
	m := tripLine.FindStringSubmatch(line)
	if m == nil {
		return trip{}, false
	}
	what := m[1]
	for _, prefix := range []string{"CUDA error ", "NVML error "} {
		if code, err := strconv.Atoi(strings.TrimPrefix(what, prefix)); err == nil {
			what = errorCell(code, m[2])
		}
	}
	return trip{what, m[2], m[3], m[4]}, true
}

// errorCell returns an error from a CUDA or NVML function as shown in tables, such as 100 NO_DEVICE.
func errorCell(code int, function string) string {
	if strings.HasPrefix(function, "nvml") {
		return fmt.Sprintf("%d %s", code, strings.TrimPrefix(cudafault.NVMLErrorName(code), "NVML_ERROR_"))
	}
	return fmt.Sprintf("%d %s", code, strings.TrimPrefix(cudafault.ErrorName(code), "CUDA_ERROR_"))
}

// cut shortens a line. Containers may log lines of any length, and the line is shown and kept as evidence.
func cut(line string) string {
	const dots = "..."
	if len(line) <= mostOfLine {
		return line
	}
	return strings.ToValidUTF8(line[:mostOfLine-len(dots)], "") + dots
}

func last(lines []string) []string { return lines[max(0, len(lines)-mostLines):] }

func hasFormerLife(pod *corev1.Pod, container string) bool {
	for _, status := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if status.Name == container {
			return status.RestartCount > 0
		}
	}
	return false
}

// readLog is observer.logs.
func (w *observer) readLog(ctx context.Context, pod *corev1.Pod, container string, previous bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	lines, bytes := int64(logLines), int64(logBytes)
	options := &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: &lines, LimitBytes: &bytes}
	return w.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
}

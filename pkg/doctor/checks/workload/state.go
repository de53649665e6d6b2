package workload

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Time limits used by the checks.
const (
	startTime    = 2 * time.Minute  // for a pod to start
	slowStart    = 15 * time.Minute // for a pod with large images to start
	evictedSince = time.Hour        // older evictions are informational
)

// quoteTrouble quotes the state of a container and the first line of its message.
func quoteTrouble(pod *corev1.Pod, t facts.Trouble) finding.Evidence {
	text := t.Text
	if first, _, _ := strings.Cut(strings.TrimSpace(t.Message), "\n"); first != "" {
		text += ": " + first
	}
	return finding.Evidence{
		Source: facts.PodObject(pod).String() + ", container " + t.Container +
			" .status", Time: t.Time, Text: words.Clip(text),
	}
}

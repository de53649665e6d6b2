package workload

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// How long things may take, and count.
const (
	startTime    = 2 * time.Minute  // a pod that just starts
	slowStart    = 15 * time.Minute // big images take long
	evictedSince = 6 * time.Hour    // an eviction is over sooner: the pod's owner has made another
)

// quoteTrouble makes evidence of it: the state, and what was said about it.
func quoteTrouble(pod *corev1.Pod, t facts.Trouble) finding.Evidence {
	text := t.Text
	if first, _, _ := strings.Cut(strings.TrimSpace(t.Message), "\n"); first != "" {
		text += ": " + first
	}
	return finding.Evidence{
		Source: facts.PodObject(pod).String() + ", container " + t.Container +
			" .status", Time: t.Time, Text: words.Cut(text),
	}
}

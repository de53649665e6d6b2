package exercise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// Recorded is data from a transcript of the candidate's requests until grading. It does not affect the points, because
// a candidate can bypass the recorder with their own kubeconfig, and can edit the file if they have access to it.
type Recorded struct {
	recorder.Summary
	// Look and Change are the durations, in nanoseconds, from handover to the first read of a root-cause object, and to
	// the first change. Zero means never.
	Look   time.Duration `json:"firstRelevantLookAfter,omitempty"`
	Change time.Duration `json:"firstChangeAfter,omitempty"`
	// Later counts requests after grading.
	Later int `json:"later,omitempty"`
}

// Retell adds data from a transcript to a report. It returns an error if the transcript belongs to another
// candidate or was recorded at a different time.
func (l *Lab) Retell(ctx context.Context, report *Report, transcript *recorder.Transcript) error {
	e, r, err := l.load(ctx, report.ID)
	if err != nil {
		return err
	}
	return report.retell(e, r.Sealed.RootCause, transcript, l.clock(ctx)())
}

// earlier is the tolerance for requests before the exercise or after now, because clocks may differ slightly.
const earlier = time.Minute

// Moments that a transcript adds to the timeline.
const (
	lookedAtCause = "first request about the root cause"
	firstChanged  = "first change"
)

// retell adds the transcript's numbers and moments. Requests cannot have been recorded after now.
func (r *Report) retell(e *Exercise, root scenario.RootCause, transcript *recorder.Transcript, now time.Time) error {
	if candidate := access.User(e.Account.ID); transcript.User != candidate {
		return fmt.Errorf("the transcript is from another exercise: the user in the transcript is %s, but the candidate in exercise %s is %s",
			transcript.User, e.ID, candidate)
	}
	for _, line := range transcript.Lines {
		if line.Time.Before(e.Started.Add(-earlier)) || line.Time.After(now.Add(earlier)) {
			return fmt.Errorf("the transcript contains a request at %s, but exercise %s was handed over at %s and the current time is %s: the transcript was written with a different clock, "+
				"or is from another exercise", line.Time.Format(time.RFC3339), e.ID, e.Started.Format(time.RFC3339),
				now.Format(time.RFC3339))
		}
	}
	until := slices.DeleteFunc(slices.Clone(transcript.Lines),
		func(line recorder.Line) bool { return line.Time.After(r.At) })
	told := &Recorded{Summary: recorder.Summarize(until), Later: len(transcript.Lines) - len(until)}
	look := recorder.FirstRelevant(until, root)
	told.Look, told.Change = after(e.Started, look), after(e.Started, told.FirstChange)
	r.Recorded = told
	others := slices.DeleteFunc(slices.Clone(r.Timeline),
		func(m Moment) bool { return m.What == lookedAtCause || m.What == firstChanged })
	r.Timeline = inOrder(append(others, Moment{look, lookedAtCause}, Moment{told.FirstChange, firstChanged}))
	return nil
}

// after returns the time from start to at, or zero if at is zero.
func after(start, at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(start), time.Millisecond)
}

// record starts a recorder in front of the API server, and returns a kubeconfig that uses the recorder. The recorder
// writes to dir and accepts connections from the listener; nil means any local connection. stop stops the recorder and
// reads the transcript; it may be called again.
func (l *Lab) record(
	ctx context.Context, e *Exercise, dir string, listener net.Listener,
) (kubeconfig []byte, stop func() (*recorder.Transcript, error), err error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("invalid kubeconfig for the candidate: %w", err)
	}
	clock := l.clock(ctx)
	name := filepath.Join(dir, e.Scenario+"-"+e.ID+".jsonl")
	file, err := recorder.Open(name, access.User(e.Account.ID), clock())
	if err != nil {
		return nil, nil, fmt.Errorf("record the program's requests: %w", err)
	}
	recording, err := recorder.Start(ctx, config, e.Public.Access.Home(), file, clock, listener)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return recording.Kubeconfig, sync.OnceValues(func() (*recorder.Transcript, error) {
		if err := errors.Join(recording.Stop(), file.Close()); err != nil {
			return nil, err
		}
		return recorder.ReadFile(name)
	}), nil
}

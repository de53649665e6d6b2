package exercise

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
)

// Recorded is what a transcript of the candidate's requests tells, until the judgment. It gives no points and takes
// none: who has the candidate's own kubeconfig may go around the recorder, and who has the file may write into it.
type Recorded struct {
	recorder.Summary
	// Look and Change are when an object of the root cause was first looked at, and when something was first changed:
	// so long after the lab was handed over, in nanoseconds. Zero means never.
	Look   time.Duration `json:"firstRelevantLookAfter,omitempty"`
	Change time.Duration `json:"firstChangeAfter,omitempty"`
	// Later counts requests after the judgment.
	Later int `json:"later,omitempty"`
}

// Retell adds what a transcript tells to a report. It refuses one that is not of this exercise's candidate and time.
func (l *Lab) Retell(ctx context.Context, report *Report, transcript *recorder.Transcript) error {
	e, r, err := l.load(ctx, report.ID)
	if err != nil {
		return err
	}
	return report.retell(e, r.Sealed.RootCause, transcript, l.clock(ctx)())
}

// earlier is how much before the exercise, or after now, a request may seem to be: clocks are not compared to the
// second.
const earlier = time.Minute

// What a transcript adds to the timeline.
const (
	lookedAtCause = "first look at the cause"
	firstChanged  = "first change"
)

// retell adds the transcript's numbers and moments. The time now bounds what can have been recorded by then.
func (r *Report) retell(e *Exercise, root scenario.RootCause, transcript *recorder.Transcript, now time.Time) error {
	if candidate := access.User(e.Account.ID); transcript.User != candidate {
		return fmt.Errorf("the transcript is of %s, and the candidate of exercise %s is %s: it is another exercise's",
			transcript.User, e.ID, candidate)
	}
	for _, line := range transcript.Lines {
		if line.Time.Before(e.Started.Add(-earlier)) || line.Time.After(now.Add(earlier)) {
			return fmt.Errorf("the transcript has a request of %s, and exercise %s was handed over at %s and it is %s now: it was written with another clock, "+
				"or is another exercise's", line.Time.Format(time.RFC3339), e.ID, e.Started.Format(time.RFC3339),
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

// after returns how long after the start something was; zero when it never was.
func after(start, at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(start), time.Millisecond)
}

// record puts a recorder in front of the API server, which writes into the folder, and returns the kubeconfig that
// leads through it. stop ends it and reads what it wrote; it may be called again. Without a folder it is the
// candidate's kubeconfig, and there is no transcript.
func (l *Lab) record(
	ctx context.Context, e *Exercise, folder string,
) (kubeconfig []byte, stop func() (*recorder.Transcript, error), err error) {
	if folder == "" {
		return e.Kubeconfig, func() (*recorder.Transcript, error) { return nil, nil }, nil
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("the candidate's kubeconfig: %w", err)
	}
	clock := l.clock(ctx)
	name := filepath.Join(folder, e.Scenario+"-"+e.ID+".jsonl")
	file, err := recorder.Open(name, access.User(e.Account.ID), clock())
	if err != nil {
		return nil, nil, fmt.Errorf("record what the program does: %w", err)
	}
	recording, err := recorder.Start(ctx, config, e.Public.Access.Namespaces[0], file, clock)
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

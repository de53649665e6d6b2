package exercise

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// maxSkew is the maximum difference between this machine's clock and the API server's clock at which this machine's
// clock is still used. The API server's Date header has a resolution of one second.
const maxSkew = 2 * time.Second

// clock returns the clock for the time box of an exercise.
func (l *Lab) clock(ctx context.Context) func() time.Time {
	if l.Now != nil {
		return func() time.Time { return l.Now().UTC() }
	}
	now, note := ServerClock(ctx, l.Config)
	if note != "" {
		l.say("%s", note)
	}
	return now
}

// stateOf returns the current digest of everything that the candidate in an exercise may change, or "" if it cannot be
// determined.
func (l *Lab) stateOf(ctx context.Context, id string) (string, error) {
	e, _, err := l.read(ctx, id)
	if err != nil || !e.Open() {
		return "", err
	}
	now, err := l.capture(ctx, e.Namespaces)
	if err != nil {
		return "", err
	}
	return e.state(now, l.Mapper), nil
}

// state returns the digest of everything that the candidate may change. It is "" if the candidate is root on nodes,
// because changes on nodes are not in any object.
func (e *Exercise) state(now *baseline.Baseline, mapper meta.RESTMapper) string {
	if e.Public.Access.NodeShell {
		return ""
	}
	candidate := writersOf(e.Public.Access, mapper)
	return now.Digest(
		func(ref scenario.Ref, body map[string]any) bool { return candidate.may(ref) && !e.probes(ref, body) },
	)
}

// waits reports whether the candidate has submitted the diagnosis and changed nothing since then, according to the
// digest of everything that they may change.
func (e *Exercise) waits(state string) bool {
	return !e.Submitted.IsZero() && state != "" && state == e.SubmittedState
}

// stop sets the end of the candidate's time to the submission of the diagnosis, or of the module if that was later,
// unless the candidate changed something afterwards.
func (r *Report) stop(e *Exercise, state string) {
	if !e.waits(state) {
		return
	}
	at := e.Submitted
	if e.ModuleAt.After(at) {
		at = e.ModuleAt
	}
	r.Took, r.Late = max(at.Sub(e.Started), 0), at.After(e.Until)
}

// ServerClock returns the API server's clock, because the clocks of trainers, candidates and token issuers differ. If
// the server does not report its time, the local clock is used. note describes how much the local clock differs; it is
// empty if the clocks agree.
func ServerClock(ctx context.Context, config *rest.Config) (now func() time.Time, note string) {
	skew := skewOf(ctx, config)
	if skew > -maxSkew && skew < maxSkew {
		skew = 0
	} else {
		way := "behind"
		if skew < 0 {
			way = "ahead of"
		}
		note = fmt.Sprintf("this machine's clock is %s %s the API server's; using the API server's",
			skew.Abs().Round(time.Second), way)
	}
	return func() time.Time { return time.Now().UTC().Add(skew).Truncate(time.Millisecond) }, note
}

// skewOf returns how far the API server's clock is ahead of the local one, or zero if the server does not
// report its time.
func skewOf(ctx context.Context, config *rest.Config) time.Duration {
	if config == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0
	}
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("version").String(), nil)
	if err != nil {
		return 0
	}
	began := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return 0
	}
	halfway := began.Add(time.Since(began) / 2)
	// The header is truncated to seconds, so it is half a second early on average.
	return date.Add(500 * time.Millisecond).Sub(halfway)
}

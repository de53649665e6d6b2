// Package otlp creates an OpenTelemetry trace from the result of an experiment, and sends the trace to a collector.
//
// It defines its own types for the JSON encoding of OTLP/HTTP, because OpenTelemetry's SDK would add megabytes to the
// plugin for a single request.
package otlp

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

// maxEvents limits the events of a span. Collectors reject requests that are too large.
const maxEvents = 1000

// builder builds the spans of a result.
type builder struct {
	result experiment.Result
	trace  string
	root   string
	spans  []span
}

// makeTrace returns the trace of a result. The span of the experiment has the timeline as its events. Below it are
// spans for each injection, each revert, and each expectation. The span of an expectation starts when the fault has
// been verified.
func makeTrace(r experiment.Result, parent parent, resourceAttributes []attribute) traces {
	b := &builder{result: r, trace: cmp.Or(parent.trace, id(16)), root: id(8)}
	b.add(b.whole(parent))
	b.actions()
	for i, k := range r.Keys() {
		b.add(b.expectation(r.Verdicts[i], k))
	}
	return traces{ResourceSpans: []resourceSpans{{
		Resource: resource{resourceAttributes},
		ScopeSpans: []scopeSpans{{
			Scope: scope{Name: "kubectl-gpu-fault", Version: build.Get().Version}, Spans: b.spans,
		}},
	}}}
}

// id returns a random ID of n bytes.
func id(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

func (b *builder) add(s span) {
	s.TraceID, s.Kind = b.trace, kindInternal
	if s.SpanID == "" {
		s.SpanID, s.Parent = id(8), b.root
	}
	b.spans = append(b.spans, s)
}

// whole returns the span of the whole experiment.
func (b *builder) whole(parent parent) span {
	r := b.result
	s := span{
		SpanID: b.root, Parent: parent.span, Name: "experiment " + r.Name, Start: nanos(r.Started), End: nanos(r.Ended),
		Attributes: []attribute{
			text("gpufault.experiment", r.Name), truth("gpufault.passed", r.Passed),
			list("gpufault.targets", r.Targets), list("gpufault.runs", r.Runs),
		},
		DroppedEvents: r.Omitted, Status: status{Code: statusOK},
	}
	for i, e := range r.Timeline {
		if i == maxEvents {
			s.DroppedEvents += len(r.Timeline) - i
			break
		}
		s.Events = append(s.Events, event{nanos(e.Time), e.What, known(
			text("k8s.node.name", e.Node), text("gpufault.pod", e.Pod), text("gpufault.by", e.Actor()),
			text("gpufault.seen", e.Text),
		)})
	}
	if !r.Passed {
		s.Status = status{Code: statusError, Message: cmp.Or(r.Error, strings.Join(r.LeftBehind, "; "),
			fmt.Sprintf("%d of %s not met", r.Failed(), count.Of(len(r.Verdicts), "expectation")))}
	}
	return s
}

// actions adds the spans of this tool's actions.
func (b *builder) actions() {
	proven := map[string]int{}
	for _, e := range b.result.Timeline {
		if e.What == experiment.WhatProven {
			proven[e.Text]++
		}
	}
	injected := map[string]int{}
	for _, e := range b.result.Timeline {
		switch {
		case e.What == experiment.WhatProven && !e.Began.IsZero():
			b.add(span{
				Name: "inject " + e.Text, Start: nanos(e.Began), End: nanos(e.Time), Status: status{Code: statusOK},
			})
		case e.What == experiment.WhatRevert && !e.Began.IsZero():
			b.add(span{
				Name: "revert " + e.Text, Start: nanos(e.Began), End: nanos(e.Time), Status: status{Code: statusOK},
			})
		case e.What == experiment.WhatInject:
			if injected[e.Text]++; injected[e.Text] > proven[e.Text] {
				b.add(span{
					Name: "inject " + e.Text, Start: nanos(e.Time), End: nanos(b.failedAt(e.Time)),
					Status: status{Code: statusError, Message: cmp.Or(b.result.Error, "not proven")},
				})
			}
		}
	}
}

// failedAt returns the latest time at which a failed injection can have ended: the start of the next revert, or the end
// of the experiment. The injection started at the time began.
func (b *builder) failedAt(began time.Time) time.Time {
	i := slices.IndexFunc(b.result.Timeline, func(e experiment.Entry) bool {
		return e.What == experiment.WhatRevert && e.Began.After(began)
	})
	if i < 0 {
		return b.result.Ended
	}
	return b.result.Timeline[i].Began
}

// expectation returns the span of an expectation. It ends when the expectation was decided: when the reaction happened,
// or at the deadline.
func (b *builder) expectation(v experiment.Verdict, k experiment.Key) span {
	proof := v.Proof
	if proof.IsZero() {
		proof = b.result.Started
	}
	ended := proof.Add(seconds(v.Limit))
	took, happened := v.Took()
	if happened {
		ended = proof.Add(seconds(took))
	}
	if ended.After(b.result.Ended) {
		ended = b.result.Ended
	}
	s := span{
		Name: "expect " + k.Name, Start: nanos(proof), End: nanos(ended), Status: status{Code: statusOK},
		Attributes: known(
			text("gpufault.expectation", k.Name), text("gpufault.state", string(v.State)), text("gpufault.by", v.By),
			text("gpufault.seen", v.Text), decimal("gpufault.limit_seconds", v.Limit),
		),
	}
	if happened {
		s.Attributes = append(s.Attributes, decimal("gpufault.reaction_seconds", took))
	}
	if k.Round > 0 {
		s.Attributes = append(s.Attributes, decimal("gpufault.round", float64(k.Round)))
	}
	if !v.OK {
		s.Status = status{Code: statusError, Message: string(v.State)}
	}
	return s
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

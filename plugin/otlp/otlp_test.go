package otlp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// failed is a result with a met and a late expectation, and an injection that was not proven.
func failed() experiment.Result {
	at := func(seconds float64) time.Time {
		start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		return start.Add(time.Duration(seconds * float64(time.Second)))
	}
	return experiment.Result{
		Name: "xid79", Targets: []string{"gpu-1"}, Started: at(0), Ended: at(90), Runs: []string{"xid-1", "xid-2"},
		Error: "xid 48 gpu-1: timed out",
		Verdicts: []experiment.Verdict{
			{
				Name: "detected", OK: true, State: experiment.StateOK, Limit: 60, After: 0.5, Proof: at(3), Round: 1,
				By: "node-problem-detector", Text: "Event Xid",
			},
			{Name: "cordoned", State: experiment.StateLate, Limit: 10, After: 20, Proof: at(3)},
			{Name: "ready", Not: true, OK: true, State: experiment.StateOK, Limit: 600, Proof: at(3)},
		},
		Timeline: []experiment.Entry{
			{Time: at(1), What: experiment.WhatInject, Text: "xid 79 gpu-1"},
			{Time: at(3), Began: at(1), What: experiment.WhatProven, Text: "xid 79 gpu-1"},
			{Time: at(3.5), What: "detected", Node: "gpu-1", By: "node-problem-detector", Text: "Event Xid"},
			{Time: at(60), What: experiment.WhatInject, Text: "xid 48 gpu-1"},
			{Time: at(85), Began: at(80), What: experiment.WhatRevert, Text: "xid-1"},
		},
		Omitted: 7,
	}
}

// ids are what is different in each trace.
var ids = regexp.MustCompile(`"(traceId|spanId|parentSpanId)": "[0-9a-f]+"`)

// Backends show the spans with these names, times and statuses; the encoding is that of OTLP's specification.
func TestTrace(t *testing.T) {
	t.Parallel()
	raw, err := json.MarshalIndent(makeTrace(failed(), parent{}, []attribute{text("service.name", "x")}), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	raw = regexp.MustCompile(`"version": ".*"`).ReplaceAll(raw, []byte(`"version": "v0"`))
	golden.Compare(t, "trace.golden", string(ids.ReplaceAll(raw, []byte(`"$1": "ID"`)))+"\n")
}

// All spans are in one trace and below the root, which is below the span that TRACEPARENT names.
func TestSpansAreOneTree(t *testing.T) {
	t.Parallel()
	const trace, outer = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	spans := makeTrace(failed(), parent{trace: trace, span: outer}, nil).ResourceSpans[0].ScopeSpans[0].Spans
	seen := map[string]bool{}
	for i, s := range spans {
		want := spans[0].SpanID
		if i == 0 {
			want = outer
		}
		if s.TraceID != trace || s.Parent != want || !isID(s.SpanID, 8) || seen[s.SpanID] {
			t.Errorf("%+v", s)
		}
		seen[s.SpanID] = true
		if s.End < s.Start { // of the same length
			t.Errorf("%s ends before it starts", s.Name)
		}
	}
	if len(spans) != 7 { // the experiment, two injections, a revert, three expectations
		t.Errorf("%d spans", len(spans))
	}
	other := makeTrace(failed(), parent{}, nil).ResourceSpans[0].ScopeSpans[0].Spans[0]
	if !isID(other.TraceID, 16) || other.TraceID == trace || other.Parent != "" {
		t.Errorf("%+v", other)
	}
}

// A burst of events does not make a trace that collectors reject.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	r := experiment.Result{Timeline: make([]experiment.Entry, maxEvents+5), Omitted: 2}
	root := makeTrace(r, parent{}, nil).ResourceSpans[0].ScopeSpans[0].Spans[0]
	if len(root.Events) != maxEvents || root.DroppedEvents != 7 {
		t.Errorf("%d events, %d dropped", len(root.Events), root.DroppedEvents)
	}
}

// variables returns an environment.
func variables(all ...string) func(string) string {
	return func(name string) string {
		for _, v := range all {
			if value, is := strings.CutPrefix(v, name+"="); is {
				return value
			}
		}
		return ""
	}
}

const (
	endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	ofTraces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="
	trace    = "0af7651916cd43dd8448eb211c80319c"
	sampled  = "TRACEPARENT=00-" + trace + "-b7ad6b7169203331-01"
)

// The variables mean what OpenTelemetry's specification says.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env     []string
		url     string
		warning string
	}{
		"nothing":          {nil, "", ""},
		"base":             {[]string{endpoint}, "http://collector:4318/v1/traces", ""},
		"base with a path": {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/"}, "https://c/otlp/v1/traces", ""},
		"traces":           {[]string{endpoint, ofTraces + "http://c/x"}, "http://c/x", ""},
		"disabled":         {[]string{endpoint, "OTEL_SDK_DISABLED=True"}, "", ""},
		"no exporter":      {[]string{endpoint, "OTEL_TRACES_EXPORTER=none"}, "", ""},
		"json":             {[]string{ofTraces + "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, "http://c", ""},
		"protobuf": {
			[]string{ofTraces + "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, "http://c",
			"sending http/json",
		},
		"grpc": {[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, "", "PROTOCOL=grpc is not supported"},
		"grpc for others": {
			[]string{
				ofTraces + "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
				"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
			}, "http://c", "",
		},
		"no URL":      {[]string{ofTraces + "collector:4318"}, "", "must be a URL such as http://localhost:4318"},
		"no password": {[]string{ofTraces + "ftp://u:secret@c"}, "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be"},
		"timeout":     {[]string{ofTraces + "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT=5s"}, "http://c", "milliseconds"},
		"sampled":     {[]string{ofTraces + "http://c", sampled}, "http://c", ""},
		"not sampled": {
			[]string{endpoint, "TRACEPARENT=00-" + trace + "-b7ad6b7169203331-00"}, "", "it is not sampled",
		},
		"headers": {[]string{ofTraces + "http://c", "OTEL_EXPORTER_OTLP_HEADERS=secret"}, "http://c", "KEY=VALUE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := read(variables(c.env...))
			url := ""
			if got.endpoint != nil {
				url = got.endpoint.String()
			}
			said := strings.Join(got.warnings, "\n")
			if url != c.url || !strings.Contains(said, c.warning) || c.warning == "" && said != "" ||
				strings.Contains(said, "secret") {
				t.Errorf("%q, %q", url, said)
			}
		})
	}
	c := read(variables(endpoint, "OTEL_EXPORTER_OTLP_HEADERS=a=1%202, Authorization=Bearer%20x",
		"OTEL_EXPORTER_OTLP_TIMEOUT=250", "OTEL_SERVICE_NAME=ci",
		"OTEL_RESOURCE_ATTRIBUTES=service.name=no,team=a%3Db"))
	if c.headers.Get("a") != "1 2" || c.headers.Get("Authorization") != "Bearer x" ||
		c.timeout != 250*time.Millisecond {
		t.Errorf("%+v", c)
	}
	var resource []string
	for _, a := range c.resource {
		resource = append(resource, a.Key+"="+*a.Value.String)
	}
	got := strings.Join(resource, " ")
	if !strings.HasPrefix(got, "service.name=ci ") || !strings.HasSuffix(got, " team=a=b") {
		t.Error(got)
	}
}

// FuzzParent holds that only a valid traceparent becomes a parent: an invalid ID would make the whole trace invalid.
func FuzzParent(f *testing.F) {
	f.Add("00-" + trace + "-b7ad6b7169203331-01")
	f.Add("cc-" + trace + "-b7ad6b7169203331-01-later")
	for _, bad := range []string{
		"00-" + trace + "-b7ad6b7169203331-01-x", "ff-" + trace + "-b7ad6b7169203331-01", "00-" + trace + "--01",
		"00-" + strings.ToUpper(trace) + "-b7ad6b7169203331-01", "00-" + trace + "-0000000000000000-01", "x",
	} {
		if p := new(config).readParent(bad); p.trace != "" {
			f.Errorf("%s was accepted", bad)
		}
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c := new(config)
		p := c.readParent(header)
		if p.trace == "" != (p.span == "") || p.trace != "" && (!isID(p.trace, 16) || !isID(p.span, 8)) {
			t.Errorf("%q: %+v", header, p)
		}
		if p.trace == "" && header != "" && len(c.warnings) == 0 {
			t.Errorf("%q was ignored without a warning", header)
		}
	})
}

// report sends a trace to a server, and returns what was said.
func report(t *testing.T, serve http.HandlerFunc, more ...string) string {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	var said bytes.Buffer
	env := variables(append(more, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL)...)
	if err := Report(t.Context(), &said, failed(), "", env); err != nil {
		t.Error(err)
	}
	return strings.ReplaceAll(said.String(), strings.TrimPrefix(server.URL, "http://"), "HOST")
}

// A collector gets the trace as OTLP in JSON, with the headers of the user.
func TestReport(t *testing.T) {
	t.Parallel()
	said := report(t, func(w http.ResponseWriter, r *http.Request) {
		var got traces
		err := json.NewDecoder(r.Body).Decode(&got)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
			r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer x" ||
			len(got.ResourceSpans[0].ScopeSpans[0].Spans) != 7 {
			t.Errorf("%v %s %v", err, r.URL, r.Header)
		}
		fmt.Fprint(w, `{"partialSuccess":{}}`)
	}, "OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20x")
	if said != "trace sent to HOST\n" {
		t.Errorf("%q", said)
	}
}

// Whatever a collector does, the experiment keeps its result, and does not wait longer than the timeout.
func TestReportFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "no\x1b[2J\nWarning: forged "+strings.Repeat("x", 1000))
		}, `403 Forbidden no\x1b[2J Warning: forged xxx`},
		"moved": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.0.1/", http.StatusTemporaryRedirect)
		}, "307 Temporary Redirect"},
		"some rejected": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}`)
		}, "the collector rejected 3 of the spans: too old"},
		"silent": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // without this, the server does not see that the client has gone
			<-r.Context().Done()
		}, "context deadline exceeded"},
		"always busy": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60000")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, "503 Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := "10000"
			if name == "silent" || name == "always busy" {
				timeout = "300"
			}
			said := report(t, c.serve, "OTEL_EXPORTER_OTLP_TIMEOUT="+timeout)
			if !strings.HasPrefix(said, "Warning: the trace was not sent to HOST: "+c.want) ||
				strings.Count(said, "\n") != 1 || len(said) > 400 {
				t.Errorf("%q", said)
			}
		})
	}
}

// A collector that is busy for a moment gets the trace later.
func TestReportAgain(t *testing.T) {
	t.Parallel()
	requests := 0
	said := report(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	if said != "trace sent to HOST\n" || requests != 2 {
		t.Errorf("%q after %d requests", said, requests)
	}
}

// A trace can be written without a collector, and nothing is said or sent without both.
func TestReportToAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "trace.json")
	var said bytes.Buffer
	if err := Report(t.Context(), &said, failed(), file, variables(sampled)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	var got traces
	if err != nil || json.Unmarshal(raw, &got) != nil || got.ResourceSpans[0].ScopeSpans[0].Spans[0].TraceID != trace {
		t.Errorf("%v\n%s", err, raw)
	}
	said.Reset()
	if err := Report(t.Context(), &said, failed(), "", variables("TRACEPARENT=x")); err != nil || said.Len() > 0 {
		t.Errorf("%v, %q", err, said.String())
	}
}

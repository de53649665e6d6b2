package expect

import (
	"bytes"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// started is when the experiments of these tests started.
var started = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// reported is a result with each kind of verdict.
func reported() experiment.Result {
	proof := started.Add(2 * time.Second)
	return experiment.Result{
		Name: "xid79", Targets: []string{"gpu-1"}, Started: started, Ended: started.Add(92500 * time.Millisecond),
		Load: []experiment.LoadResult{{Name: "served", Phases: []experiment.LoadPhase{{
			Phase: experiment.PhaseFault,
			Stats: experiment.Stats{Requests: 40, OK: 0.925, P50: 0.01, P95: 0.2, P99: 1.5},
		}}}},
		Verdicts: []experiment.Verdict{
			{
				Name: "detected", OK: true, State: experiment.StateOK, Limit: 60, After: -0.2, Proof: proof, Round: 1,
				By: "node-problem-detector (xid-monitor)",
			},
			{
				Name: "cordoned", State: experiment.StateLate, Limit: 60, After: 75.25, Proof: proof, Round: 1,
				By: "NVSentinel",
			},
			{Name: "drained", State: experiment.StateMissing, Limit: 30, Proof: proof, Round: 1},
			{Name: "ready", Not: true, OK: true, State: experiment.StateOK, Limit: 30, Proof: proof, Round: 1},
			{Name: "detected (2)", OK: true, State: experiment.StateOK, Limit: 60, After: 1e-7, Proof: proof, Round: 2},
		},
	}
}

// parsed returns the metrics of a result, as Prometheus reads them.
func parsed(t *testing.T, r experiment.Result) map[string]*dto.MetricFamily {
	t.Helper()
	var out bytes.Buffer
	if err := Prometheus(printer.Screen(&out), r); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return all
}

// valueOf returns the value of a label of a sample.
func valueOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// Dashboards depend on the names of metrics and labels.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Prometheus(&out, reported()); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "prometheus.golden", out.String())
	all := parsed(t, reported())
	if len(all) != 9 {
		t.Errorf("%d metrics", len(all))
	}
	reactions := all["gpufault_reaction_seconds"].GetMetric()
	if len(reactions) != 3 || reactions[1].GetGauge().GetValue() != 75.25 ||
		valueOf(reactions[1], "by") != "NVSentinel" {
		t.Errorf("%v", reactions)
	}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if m.TimestampMs != nil {
				t.Errorf("%s has a timestamp, which collectors reject", family.GetName())
			}
		}
	}
}

// What files, nodes and clients are called cannot end a label, and the same series never occurs twice, for which
// Prometheus rejects the whole file.
func TestPrometheusOfHostileNames(t *testing.T) {
	t.Parallel()
	const hostile = "a\"} 1\n\\b\x1b[2J\xff\u202e"
	verdict := experiment.Verdict{Name: hostile, By: hostile, State: experiment.StateLate, After: 1}
	all := parsed(t, experiment.Result{
		Name: hostile, Targets: []string{hostile},
		Verdicts: []experiment.Verdict{verdict, verdict, {Name: hostile + " #2"}},
	})
	seen := map[string]bool{}
	for _, m := range all["gpufault_expectation_met"].GetMetric() {
		if seen[m.String()] {
			t.Errorf("twice: %s", m)
		}
		seen[m.String()] = true
		if got := valueOf(m, "experiment"); got != printer.Clean(hostile) {
			t.Errorf("%q", got)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d series", len(seen))
	}
}

package experiment

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

// longResult returns the result of an experiment with 1,000 events.
func longResult() experiment.Result {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := experiment.Result{
		Name: "bench", Passed: true, Targets: []string{"gpu-1"}, Started: start, Ended: start.Add(time.Hour),
		Runs: []string{"xid-7k3f9q"},
	}
	for i := range 20 {
		r.Verdicts = append(r.Verdicts, experiment.Verdict{
			Name: "cordoned", Round: i + 1, OK: true, State: experiment.StateOK, After: float64(i), Limit: 60,
			By: "node-problem-detector", Text: "node-problem-detector",
		})
	}
	for i := range 1000 {
		r.Timeline = append(r.Timeline, experiment.Entry{
			Time: start.Add(time.Duration(i) * time.Second), Since: float64(i), What: "pod-failed", Node: "gpu-1",
			Pod: fmt.Sprintf("ml/train-%d", i), By: "kubelet", Text: "Error: exit code 1 <of main>",
		})
	}
	return r
}

func BenchmarkResultHTML(b *testing.B) {
	r := longResult()
	b.ReportAllocs()
	for b.Loop() {
		if HTML(r) == "" {
			b.Fatal("the page is empty")
		}
	}
}

func BenchmarkResultMarkdown(b *testing.B) {
	r := longResult()
	b.ReportAllocs()
	for b.Loop() {
		if Markdown(r) == "" {
			b.Fatal("the page is empty")
		}
	}
}

// BenchmarkResultJSON is the floor of both.
func BenchmarkResultJSON(b *testing.B) {
	r := longResult()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(r); err != nil {
			b.Fatal(err)
		}
	}
}

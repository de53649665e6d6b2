package expect

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Prometheus writes a result in Prometheus' text format, for node_exporter's textfile collector and for a Pushgateway.
// Both reject samples with a timestamp, so the time of the experiment is a separate metric.
func Prometheus(out io.Writer, r experiment.Result) error {
	whole := labels{{"experiment", r.Name}, {"target", strings.Join(r.Targets, ",")}}
	passed := metric{"gpufault_experiment_passed", "Whether the expectations were met and, in an experiment, everything was reverted.", nil}
	took := metric{"gpufault_experiment_duration_seconds", "Time from the start to the end of the experiment.", nil}
	ended := metric{"gpufault_experiment_end_timestamp_seconds", "Unix time of the end of the experiment.", nil}
	met := metric{"gpufault_expectation_met", "Whether the expectation was met.", nil}
	limit := metric{"gpufault_expectation_limit_seconds", "Deadline for the expectation, relative to the " +
		"verification of the fault.", nil}
	reaction := metric{"gpufault_reaction_seconds", "Time from the verification of the fault to the reaction.", nil}
	passed.add(whole, number(r.Passed))
	took.add(whole, r.Ended.Sub(r.Started).Seconds())
	ended.add(whole, float64(r.Ended.UnixMilli())/1000)
	keys := r.Keys()
	for i, v := range r.Verdicts {
		one := append(whole[:len(whole):len(whole)], label{"expectation", keys[i].Name})
		if keys[i].Round > 0 {
			one = append(one, label{"round", strconv.Itoa(keys[i].Round)})
		}
		met.add(one, number(v.OK))
		limit.add(one, v.Limit)
		if seconds, happened := v.Took(); happened {
			reaction.add(append(one, label{"by", v.By}), seconds)
		}
	}
	for _, m := range append([]metric{passed, took, ended, met, limit, reaction}, loadMetrics(whole, r.Load)...) {
		if err := m.write(out); err != nil {
			return err
		}
	}
	return nil
}

// loadMetrics returns the figures for each phase of each load.
func loadMetrics(whole labels, all []experiment.LoadResult) []metric {
	requests := metric{"gpufault_load_requests", "Number of requests sent in the phase.", nil}
	ok := metric{"gpufault_load_ok_ratio", "Ratio of requests that received a response.", nil}
	took := metric{"gpufault_load_seconds", "Response time of successful requests, by quantile.", nil}
	for _, l := range all {
		for _, p := range l.Phases {
			one := append(whole[:len(whole):len(whole)], label{"load", l.Name}, label{"phase", string(p.Phase)})
			requests.add(one, float64(p.Requests))
			ok.add(one, p.OK)
			for quantile, value := range map[string]float64{"0.5": p.P50, "0.95": p.P95, "0.99": p.P99} {
				took.add(append(one[:len(one):len(one)], label{"quantile", quantile}), value)
			}
		}
	}
	slices.Sort(took.samples)
	return []metric{requests, ok, took}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// metric is a gauge with its samples.
type metric struct {
	name, help string
	samples    []string
}

type label struct{ name, value string }

type labels []label

func (m *metric) add(all labels, value float64) {
	var pairs []string
	for _, l := range all {
		if l.value != "" { // an empty label is equivalent to no label
			pairs = append(pairs, l.name+`="`+escaped.Replace(printer.Clean(l.value))+`"`)
		}
	}
	m.samples = append(m.samples,
		m.name+"{"+strings.Join(pairs, ",")+"} "+strconv.FormatFloat(value, 'g', -1, 64)+"\n")
}

// escaped escapes the value of a label. printer.Clean has replaced line breaks.
var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (m *metric) write(out io.Writer) error {
	if len(m.samples) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n%s", m.name, m.help, m.name,
		strings.Join(m.samples, ""))
	return err
}

package exercise

import (
	"math"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// AgentReport reports how often a program solved scenarios.
type AgentReport struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Command string `json:"command"`
	// Tries is the number of valid tries, and Passed is the number of valid tries that solved the scenario. Invalid is
	// the number of tries that do not count.
	Tries   int `json:"tries"`
	Passed  int `json:"passed"`
	Invalid int `json:"invalid,omitempty"`
	// Low and High are the bounds of the 95% Wilson interval of Passed/Tries.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// PassAt contains the means of the scenarios' pass@1, pass@2 and so on, up to the smallest number of tries.
	PassAt    []float64    `json:"passAt"`
	Scenarios []AgentScore `json:"scenarios"`
	All       []Try        `json:"all"`
}

// AgentScore is a program's result in one scenario.
type AgentScore struct {
	Scenario string  `json:"scenario"`
	Tries    int     `json:"tries"`
	Passed   int     `json:"passed"`
	Invalid  int     `json:"invalid,omitempty"`
	PassAt1  float64 `json:"passAt1"`
	// Low and High are the bounds of the 95% Wilson interval of PassAt1.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// PassAt contains pass@1, pass@2 and so on: the probability that at least one of k tries passes, estimated without
	// bias.
	PassAt []float64 `json:"passAt"`
	// Score and Took are means over the valid tries.
	Score float64       `json:"score"`
	Took  time.Duration `json:"took"` // in nanoseconds
}

// mostAt is the maximum k of pass@k.
const mostAt = 10

// summarize computes the report of all tries.
func summarize(command string, all []Try) *AgentReport {
	report := &AgentReport{APIVersion: APIVersion, Kind: KindAgentReport, Command: command, All: all}
	sorting.StableFunc(report.All, func(a, b Try) int { return strings.Compare(a.Scenario, b.Scenario) })
	for _, try := range report.All {
		n := len(report.Scenarios)
		if n == 0 || report.Scenarios[n-1].Scenario != try.Scenario {
			report.Scenarios = append(report.Scenarios, AgentScore{Scenario: try.Scenario})
			n++
		}
		report.Scenarios[n-1].count(try)
	}
	least := mostAt
	counted := 0
	for i := range report.Scenarios {
		s := &report.Scenarios[i]
		s.finish()
		report.Tries, report.Passed, report.Invalid = report.Tries+s.Tries, report.Passed+s.Passed,
			report.Invalid+s.Invalid
		if s.Tries > 0 {
			least, counted = min(least, s.Tries), counted+1
		}
	}
	report.Low, report.High = wilson(report.Passed, report.Tries)
	for k := 0; counted > 0 && k < least; k++ {
		sum := 0.0
		for _, s := range report.Scenarios {
			if s.Tries > 0 {
				sum += s.PassAt[k]
			}
		}
		report.PassAt = append(report.PassAt, sum/float64(counted))
	}
	return report
}

func (s *AgentScore) count(try Try) {
	if try.Invalid != "" {
		s.Invalid++
		return
	}
	s.Tries++
	s.Score += float64(try.Score)
	s.Took += try.Took
	if try.Passed {
		s.Passed++
	}
}

func (s *AgentScore) finish() {
	s.Low, s.High = wilson(s.Passed, s.Tries)
	if s.Tries == 0 {
		return
	}
	s.Score /= float64(s.Tries)
	s.Took /= time.Duration(s.Tries)
	for k := 1; k <= min(s.Tries, mostAt); k++ {
		s.PassAt = append(s.PassAt, passAt(s.Tries, s.Passed, k))
	}
	s.PassAt1 = s.PassAt[0]
}

// passAt returns the unbiased estimate of pass@k from c passes of n tries: 1 - C(n-c, k)/C(n, k), as a product that
// does not overflow (Chen et al. 2021, Evaluating Large Language Models Trained on Code).
func passAt(n, c, k int) float64 {
	if n-c < k {
		return 1
	}
	none := 1.0
	for i := n - c + 1; i <= n; i++ {
		none *= 1 - float64(k)/float64(i)
	}
	return 1 - none
}

// wilson returns the 95% Wilson interval of the rate c/n (Wilson 1927), or 0 to 1 if n is 0.
func wilson(c, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	const z = 1.959963984540054
	rate, count := float64(c)/float64(n), float64(n)
	middle := (rate + z*z/(2*count)) / (1 + z*z/count)
	half := z / (1 + z*z/count) * math.Sqrt(rate*(1-rate)/count+z*z/(4*count*count))
	low, high = max(0, middle-half), min(1, middle+half)
	if c == 0 {
		low = 0
	}
	if c == n {
		high = 1
	}
	return low, high
}

package signatures

import (
	"fmt"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// BenchmarkBest matches 1,000 lines of a log, of which one in ten is the example of a signature.
func BenchmarkBest(b *testing.B) {
	all := Builtin()
	set := NewSet(all)
	var lines []Line
	for i := range 1000 {
		line := Line{Place: Log, Evidence: finding.Evidence{Text: fmt.Sprintf("step %d: loss 0.%d, 12.3 s", i, i)}}
		if i%10 == 0 {
			s := all[i%len(all)]
			line = Line{Place: s.In[0], Evidence: finding.Evidence{Text: s.Example}}
		}
		lines = append(lines, line)
	}
	b.ReportAllocs()
	for b.Loop() {
		found := 0
		for i := range lines {
			found += len(set.Best(lines[i : i+1]))
		}
		if found < 50 {
			b.Fatalf("%d lines match", found)
		}
	}
}

// BenchmarkFromJSON reads all signatures, which doctor does at each start.
func BenchmarkFromJSON(b *testing.B) {
	data, err := JSON()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fromJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}

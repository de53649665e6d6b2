package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// benchLine matches a result of go test -bench: the name without the number of processors, and the nanoseconds.
var benchLine = regexp.MustCompile(`(?m)^(Benchmark\w+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op`)

// measureReport compares the time to write an experiment report with 1,000 events as an HTML page and as JSON.
func (b *bench) measureReport(ctx context.Context) ([]row, error) {
	times, err := b.goBench(ctx, "./plugin/experiment", "^BenchmarkResult(HTML|JSON)$")
	if err != nil {
		return nil, err
	}
	return []row{
		compared("experiment report, HTML", "ms", times["BenchmarkResultHTML"], "the same result as JSON",
			times["BenchmarkResultJSON"]).judged(),
	}, nil
}

// goBench runs Go benchmarks, and returns the times of each in seconds.
func (b *bench) goBench(ctx context.Context, pkg, pattern string) (map[string]sample, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchtime", "50x",
		fmt.Sprintf("-count=%d", b.rounds), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	times := map[string]sample{}
	for _, m := range benchLine.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		times[m[1]] = append(times[m[1]], ns/1e9)
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("%v printed no results: %s", cmd.Args, out)
	}
	return times, nil
}

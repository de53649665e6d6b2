// Command allocs compares the number of allocations in hot paths with test/bench/allocs.txt. It runs their benchmarks,
// and uses benchstat to compare allocs/op with this file; times are not compared, because machines differ.
//
//	go run ./hack/allocs            fails if a benchmark has 10 % more allocations than in the file
//	go run ./hack/allocs -update    writes the file
package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// baseline contains the results to compare with, in benchstat's format.
const baseline = "test/bench/allocs.txt"

// most is the maximum growth of allocs/op, in percent.
const most = 10

// packages contain the benchmarks. All benchmarks in them are compared.
var packages = []string{
	"./pkg/doctor", "./pkg/doctor/signatures", "./pkg/snapshot", "./pkg/fault/ledger", "./pkg/experiment",
	"./plugin/experiment",
}

func main() {
	update := flag.Bool("update", false, "write "+baseline)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *update, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "allocs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, update bool, out io.Writer) error {
	text, err := measure(ctx)
	if err != nil {
		return err
	}
	if update {
		return errors.Join(os.MkdirAll(filepath.Dir(baseline), 0o755), os.WriteFile(baseline, text, 0o644))
	}
	before, err := os.ReadFile(baseline)
	if err != nil {
		return fmt.Errorf("%w; to write the file, use -update", err)
	}
	if err := sameBenchmarks(before, text); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpu-fault-allocs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	now := filepath.Join(dir, "now.txt")
	if err := os.WriteFile(now, text, 0o600); err != nil {
		return err
	}
	table, err := goCommand(ctx, "tool", "-modfile=hack/tools/go.mod", "benchstat", "-format", "csv", baseline, now)
	if err != nil {
		return err
	}
	changes, err := parse(table)
	if err != nil {
		return err
	}
	return judge(out, changes)
}

// measure runs the benchmarks. Benchstat needs at least five samples to report a significant change.
func measure(ctx context.Context) ([]byte, error) {
	out, err := goCommand(ctx, append([]string{
		"test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "5x", "-count", "5", "-p", "1", "-cpu", "2",
	}, packages...)...)
	if err != nil {
		return nil, err
	}
	return onlyAllocs(out), nil
}

func goCommand(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, said.String(), out.String())
	}
	return out.Bytes(), nil
}

var (
	pkgLine = regexp.MustCompile(`^pkg: `)
	result  = regexp.MustCompile(`^(Benchmark\S+\s+\d+)\s.*?(\d+ allocs/op)`)
)

// onlyAllocs keeps the packages and the allocations in benchmark results, because everything else differs between
// machines.
func onlyAllocs(text []byte) []byte {
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if m := result.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(&kept, "%s\t%s\n", strings.Join(strings.Fields(m[1]), "\t"), m[2])
		} else if pkgLine.MatchString(line) {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String())
}

// names returns the benchmarks in a list of results, by package.
func names(text []byte) []string {
	var all []string
	pkg := ""
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] == "pkg:":
			pkg = fields[1]
		default:
			all = append(all, pkg+" "+fields[0])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// sameBenchmarks returns an error if a benchmark is in only one list of results, because such a benchmark would not be
// compared.
func sameBenchmarks(before, now []byte) error {
	was, is := names(before), names(now)
	var failed error
	for _, name := range was {
		if !slices.Contains(is, name) {
			failed = errors.Join(failed, fmt.Errorf("%s did not run; remove it from %s with -update", name, baseline))
		}
	}
	for _, name := range is {
		if !slices.Contains(was, name) {
			failed = errors.Join(failed, fmt.Errorf("%s is not in %s; add it with -update", name, baseline))
		}
	}
	return failed
}

// change is the difference in the allocations of one benchmark, in percent.
type change struct {
	name        string
	before, now float64
}

func (c change) percent() float64 {
	if c.before == 0 {
		return 100 * c.now // without allocations before, each new one exceeds the limit
	}
	return 100 * (c.now/c.before - 1)
}

// parse reads benchstat's CSV: a table for each package, whose rows contain the name, the previous median and its
// spread, the current median and its spread, and the difference, which is "~" if it is not significant.
func parse(table []byte) ([]change, error) {
	r := csv.NewReader(bytes.NewReader(table))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("benchstat's output: %w", err)
	}
	var all []change
	for _, row := range rows {
		if len(row) < 6 || row[0] == "" || row[0] == "geomean" {
			continue
		}
		c := change{name: row[0]}
		var err1, err2 error
		c.before, err1 = strconv.ParseFloat(row[1], 64)
		c.now, err2 = strconv.ParseFloat(row[3], 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("benchstat's row %q: %w", row, err)
		}
		if row[5] == "~" {
			c.now = c.before
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("benchstat compared no benchmarks: %s", table)
	}
	return all, nil
}

// judge prints a line for each benchmark, and returns an error if one has too many allocations.
func judge(out io.Writer, changes []change) error {
	over := 0
	for _, c := range changes {
		note := ""
		switch {
		case c.percent() > most:
			over++
			note = "  over"
		case c.percent() < -most:
			note = "  better; to record the improvement, use -update"
		}
		fmt.Fprintf(out, "%-22s %9.0f %9.0f allocs/op %+7.1f %%%s\n", c.name, c.before, c.now, c.percent(), note)
	}
	if over > 0 {
		return fmt.Errorf("%d of %d benchmarks have more than %d %% more allocations than in %s: find the cause, or "+
			"accept the increase with -update",
			over, len(changes), most, baseline)
	}
	fmt.Fprintf(out, "allocations within %d %% of the baseline in %d of %d "+
		"benchmarks\n", most, len(changes), len(changes))
	return nil
}

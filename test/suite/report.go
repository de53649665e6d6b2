package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// report says how far the run is, and in the end what ran.
type report struct {
	mu       sync.Mutex
	talk     io.Writer
	jobs     int // how many there are
	done     int
	parts    map[string]*partReport
	order    []string
	problems []string
	tests    map[string][]float64 // seconds of each end-to-end test
	cpu      cpuTime
}

// partReport is a row of the table.
type partReport struct {
	jobs, passed, failed, skipped int
	// held and tried count the attacks: results that have no results of their own below them.
	held, tried int
	busy        time.Duration // the sum over its jobs
	rows        []any
}

func newReport(talk io.Writer, jobs []job, repeat int) *report {
	r := &report{
		talk: talk, jobs: len(jobs) * repeat, parts: map[string]*partReport{}, tests: map[string][]float64{},
		cpu: readCPUTime(),
	}
	for _, j := range jobs {
		if r.parts[j.part] == nil {
			r.parts[j.part] = &partReport{}
			r.order = append(r.order, j.part)
		}
	}
	slices.Sort(r.order)
	return r
}

// begins says which job runs now.
func (r *report) begins(j job) {
	fmt.Fprintf(r.talk,
		"             ...          %s: builds the tests of all packages and runs them, which takes minutes\n", j.name)
}

// finished reports a job: a line, and of one that failed what its log says.
func (r *report) finished(j job, results []result, err error, took time.Duration, log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	p := r.parts[j.part]
	p.jobs++
	p.busy += took
	verdict, failures := "ok", []string{}
	if j.part == attacks {
		p.count(results)
	}
	for _, result := range results {
		switch {
		case result.failed:
			p.failed++
			failures = append(failures, result.name+why(result.why))
		case result.skipped != "":
			p.skipped++
			fmt.Fprintf(r.talk, "      skipped: %s: %s\n", result.name, strings.TrimSpace(result.skipped))
		default:
			p.passed++
		}
		if result.row != nil {
			p.rows = append(p.rows, result.row)
		}
		if pkg, test, _ := strings.Cut(result.name, " "); strings.HasPrefix(pkg, "./") &&
			!strings.Contains(test, "/") && result.skipped == "" {
			r.tests[result.name] = append(r.tests[result.name], result.seconds)
		}
	}
	text := []byte{}
	if err != nil || len(failures) > 0 {
		verdict = "FAIL"
		text, _ = os.ReadFile(log)
	}
	if err != nil {
		p.failed++
		said := ""
		if len(failures) == 0 { // no test has said why: a script's last words are in its log
			said = why(string(tail(text, 2000)))
		}
		failures = append(failures, err.Error()+said)
	}
	fmt.Fprintf(r.talk, "%4d of %d  %-4s %6.1fs  %s\n", r.done, r.jobs, verdict, took.Seconds(), j.name)
	if len(failures) > 0 {
		fmt.Fprintf(r.talk, "--- %s\n%s\n--- end of %s\n", j.name, tail(text, 30000), log)
		for _, failure := range failures {
			r.problems = append(r.problems, j.part+": "+failure)
		}
	}
}

// problem reports what kept a lane or a job from working.
func (r *report) problem(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.talk, "FAIL %s: %v\n", name, err)
	r.problems = append(r.problems, fmt.Sprintf("%s: %v", name, err))
}

// why indents what a failed test said, below its name.
func why(said string) string {
	if said = strings.TrimRight(said, "\n"); said == "" {
		return ""
	}
	return "\n    " + strings.ReplaceAll(said, "\n", "\n    ")
}

// tail returns the last n bytes of a text, from the start of a line.
func tail(text []byte, n int) []byte {
	if len(text) <= n {
		return text
	}
	text = text[len(text)-n:]
	return append([]byte("...\n"), text[bytes.IndexByte(text, '\n')+1:]...)
}

// print prints what the tier leaves out and what it had no time for, what the parts have to show, the table of parts,
// and the count. It returns whether anything failed.
func (r *report) print(w io.Writer, skipped, late []job, took time.Duration, slow float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	printSkipped(w, "Left out", skipped)
	printSkipped(w, "No time was left for", late)
	printScenarios(w, r.parts["scenarios"])
	fmt.Fprintf(w, "%-28s %5s %8s %7s %7s\n", "PART", "JOBS", "SECONDS", "PASSED", "FAILED")
	var passed, failed, notRun int
	for _, name := range r.order {
		p := r.parts[name]
		fmt.Fprintf(w, "%-28s %5d %8.0f %7d %7d\n", name, p.jobs, p.busy.Seconds(), p.passed, p.failed)
		passed, failed, notRun = passed+p.passed, failed+p.failed, notRun+p.skipped
	}
	fmt.Fprintf(w, "%-28s %5d %8.0f  processors %s busy; at the end, jobs took %.1f times as long as usual\n",
		"all, side by side", r.done, took.Seconds(), r.cpu.busySince(), slow)
	if p := r.parts[attacks]; p != nil && len(r.parts) > 1 {
		fmt.Fprintf(w, "attacks held %d of %d\n", p.held, p.tried)
	}
	if len(r.parts) > 1 {
		printCheats(w, r.parts[cheats])
	}
	for _, problem := range r.problems {
		fmt.Fprintf(w, "FAILED %s\n", problem)
	}
	if n := len(r.problems); failed < n {
		failed = n
	}
	if r.done < r.jobs {
		fmt.Fprintf(w, "%d jobs did not run\n", r.jobs-r.done)
		failed += r.jobs - r.done
	}
	fmt.Fprintf(w, "%d passed, %d failed", passed, failed)
	if notRun > 0 {
		fmt.Fprintf(w, ", %d skipped", notRun)
	}
	fmt.Fprintln(w)
	if p := r.parts[attacks]; p != nil && len(r.parts) == 1 { // then it is the last line
		fmt.Fprintf(w, "attacks held %d of %d\n", p.held, p.tried)
	}
	if len(r.parts) == 1 {
		printCheats(w, r.parts[cheats])
	}
	return failed > 0
}

// count counts attacks.
func (p *partReport) count(results []result) {
	for _, r := range results {
		below := func(other result) bool { return strings.HasPrefix(other.name, r.name+"/") }
		if _, test, _ := strings.Cut(r.name, " "); !strings.Contains(test, "/") || slices.ContainsFunc(results, below) {
			continue // a test with attacks of its own
		}
		p.tried++
		if !r.failed && r.skipped == "" {
			p.held++
		}
	}
}

// printSkipped says which jobs did not run.
func printSkipped(w io.Writer, why string, skipped []job) {
	if len(skipped) == 0 {
		return
	}
	byPart := map[string][]string{}
	seconds := 0.0
	for _, j := range skipped {
		byPart[j.part] = append(byPart[j.part], leftOutName(j.name))
		seconds += j.seconds
	}
	fmt.Fprintf(w, "%s %d jobs of about %s in all; `make test-all` runs them:\n", why, len(skipped),
		(time.Duration(seconds) * time.Second).Round(time.Minute))
	for _, part := range slices.Sorted(maps.Keys(byPart)) {
		slices.Sort(byPart[part])
		fmt.Fprintf(w, "  %s: %s\n", part, strings.Join(byPart[part], "; "))
	}
	fmt.Fprintln(w)
}

// jobNumber is what the name of a job of end-to-end tests has besides the tests.
var jobNumber = regexp.MustCompile(`^e2e (\S+) .*?\d+: `)

func leftOutName(job string) string {
	return strings.TrimPrefix(strings.TrimPrefix(jobNumber.ReplaceAllString(job, "$1 "), "scenario "), "crash group ")
}

// printScenarios prints a line for each scenario: how many attempts were graded right, and what took longest.
func printScenarios(w io.Writer, p *partReport) {
	type summary struct {
		right, all    map[string]int // by the verdict that was wanted
		broken, grade time.Duration
	}
	scenarios, right, all := map[string]*summary{}, 0, 0
	if p == nil {
		return
	}
	for _, row := range p.rows {
		a := row.(played)
		s := scenarios[a.Scenario]
		if s == nil {
			s = &summary{right: map[string]int{}, all: map[string]int{}}
			scenarios[a.Scenario] = s
		}
		s.all[a.Wanted]++
		all++
		if a.OK {
			s.right[a.Wanted]++
			right++
		}
		s.broken = max(s.broken, a.Broken)
		if a.Wanted == "passed" {
			s.grade = max(s.grade, a.Grade)
		}
	}
	fmt.Fprintf(w, "%-20s  %9s  %11s  %12s  %s\n", "SCENARIO", "SOLUTIONS", "WRONG FIXES", "BROKEN AFTER",
		"SOLUTION GRADED IN (the longest, stability included)")
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		s := scenarios[name]
		count := func(wanted string) string { return fmt.Sprintf("%d of %d", s.right[wanted], s.all[wanted]) }
		fmt.Fprintf(w, "%-20s  %9s  %11s  %11.1fs  %.1fs\n", name, count("passed"), count("failed"), s.broken.Seconds(),
			s.grade.Seconds())
	}
	fmt.Fprintf(w, "correct results: %d of %d\n\n", right, all)
}

// writeTimes writes what each end-to-end test took, in the median of its runs, into tests.tsv. Tests that did not run
// keep their line.
func (r *report) writeTimes(path string) error {
	all, err := readTests(path)
	if err != nil {
		return err
	}
	for name, seconds := range r.tests {
		slices.Sort(seconds)
		k := all[name]
		k.seconds = seconds[len(seconds)/2]
		all[name] = k
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		pkg, test, _ := strings.Cut(name, " ")
		word := cmp.Or(string(all[name].site), map[tier]string{core: "core", rest: "rest"}[all[name].tier])
		fmt.Fprintf(&text, "%s\t%s\t%.1f\t%s\n", pkg, test, all[name].seconds, word)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// cpuTime is for how long the machine's processors have worked and idled since it started, in clock ticks; and for how
// long they have worked with low priority.
type cpuTime struct{ work, idle, low float64 }

func readCPUTime() cpuTime {
	text, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, wait, irq, soft float64
	_, _ = fmt.Sscanf(string(text), "cpu %g %g %g %g %g %g %g", &user, &nice, &system, &idle, &wait, &irq, &soft)
	return cpuTime{user + nice + system + irq + soft, idle + wait, nice}
}

// free returns a function that returns the share of the processors' time since its last call that nothing, or only work
// of low priority, used. It is 0 while memory is short.
func (t cpuTime) free() func() float64 {
	last := t
	return func() float64 {
		now := readCPUTime()
		left, all := now.idle-last.idle+now.low-last.low, now.idle-last.idle+now.work-last.work
		last = now
		if memoryIsShort() {
			return 0
		}
		return left / cmp.Or(all, 1)
	}
}

// memoryIsShort reports whether the machine has too little memory for one more cluster.
func memoryIsShort() bool {
	text, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	var kib float64
	_, _ = fmt.Sscan(rest, &kib)
	return kib < 4<<20
}

func (t cpuTime) busySince() string {
	now := readCPUTime()
	work, idle := now.work-t.work, now.idle-t.idle
	return fmt.Sprintf("%.0f %%", 100*work/cmp.Or(work+idle, 1))
}

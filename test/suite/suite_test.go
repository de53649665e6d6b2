package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTestsFile holds tests.tsv against the tree: a line that names no test is stale, and each file of end-to-end
// tests, which stands for a feature, has a test in `make test`, but for the features that are named here with the
// reason.
func TestTestsFile(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	tests, err := clusterTests(root)
	if err != nil {
		t.Fatal(err)
	}
	known, err := readTests(filepath.Join(root, testsFile))
	if err != nil {
		t.Fatal(err)
	}
	withoutCore := map[string]string{
		"pkg/containerd/e2e_test.go":        "unit tests have what containerd merged; this compares it again with a running one, for a minute",
		"test/containerd/faults_test.go":    "containerd 1.7 is built for it",
		"test/containerd/merge_test.go":     "containerd 1.7 is built for it",
		"test/containerd/daemon_test.go":    "containerd 1.7 is built for it",
		"test/e2e/attack_files_test.go":     "attacks take minutes; those on objects and of narrow roles are core",
		"test/e2e/attack_nodes_test.go":     "as above",
		"test/e2e/attack_screen_test.go":    "as above",
		"test/e2e/attack_tenants_test.go":   "as above",
		"test/e2e/attack_workloads_test.go": "as above",
		"test/e2e/doctor_scenarios_test.go": "minutes for each scenario; the corpora have what they break",
		"test/e2e/firewall_test.go":         "TestPartition and the sample of blocked-egress use the firewall",
		"test/scale/doctor_test.go":         "thousands of nodes take minutes",
		"test/scale/scale_test.go":          "dozens of nodes take a minute",
	}
	exists, hasCore := map[string]bool{}, map[string]bool{}
	for _, test := range tests {
		name := test.pkg + " " + test.name
		exists[name] = true
		hasCore[test.file] = hasCore[test.file] || known[name].tier == core
	}
	if len(exists) < 150 {
		t.Errorf("only %d end-to-end tests were found in the tree", len(exists))
	}
	for name := range known {
		if !exists[name] {
			t.Errorf("%s names %s, which does not exist", testsFile, name)
		}
	}
	for file, has := range hasCore {
		if _, excused := withoutCore[file]; !has && !excused {
			t.Errorf("no test of %s is core: `make test` must have one for each feature", file)
		}
	}
}

// aList has jobs of all tiers; those of the rest take 1 to 40 seconds.
func aList() []job {
	all := []job{{name: "unit", tier: core}, {name: "lint", tier: check}, {name: "crash sample", tier: sample}}
	for i := range 40 {
		all = append(all, job{name: fmt.Sprintf("rest %d", i), tier: rest, seconds: float64(i + 1)})
	}
	return all
}

func names(jobs []job) []string {
	var all []string
	for _, j := range jobs {
		all = append(all, j.name)
	}
	slices.Sort(all)
	return all
}

// TestAWeekPlaysEverything protects what .ci/run leaves out: seven commits in a row run every job, each a share of
// about the same length, and what a run leaves out is what it does not run.
func TestAWeekPlaysEverything(t *testing.T) {
	t.Parallel()
	played := map[string]bool{}
	for k := range week {
		chosen, skipped, err := choose(aList(), options{
			tier: "ci", share: fmt.Sprintf("%d/%d", k+1, week), only: regexp.MustCompile(""), lanes: 1, repeat: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		seconds := 0.0
		for _, j := range chosen {
			played[j.name] = true
			seconds += j.seconds
		}
		if seconds < 100 || seconds > 135 { // 820 seconds in seven shares
			t.Errorf("share %d of %d takes %.0f seconds", k+1, week, seconds)
		}
		if len(chosen)+len(skipped) != len(aList()) {
			t.Errorf("share %d: %d jobs run and %d are left out, of %d", k+1, len(chosen), len(skipped), len(aList()))
		}
	}
	if len(played) != len(aList()) {
		t.Errorf("a week plays %d of %d jobs: %v", len(played), len(aList()), slices.Sorted(maps.Keys(played)))
	}
}

// TestTiers protects `make test` and `make test-all` from running more or less than they say.
func TestTiers(t *testing.T) {
	t.Parallel()
	everything := regexp.MustCompile("")
	for tier, want := range map[string]int{"test": 2, "all": 42} {
		chosen, _, err := choose(aList(), options{tier: tier, only: everything, lanes: 1, repeat: 1})
		if err != nil || len(chosen) != want {
			t.Errorf("-tier %s runs %d jobs, want %d: %v, %v", tier, len(chosen), want, names(chosen), err)
		}
	}
	chosen, _, err := choose(aList(), options{tier: "test", only: regexp.MustCompile("^lint$"), lanes: 1, repeat: 1})
	if err != nil || len(chosen) != 1 || chosen[0].name != "lint" {
		t.Errorf("-only chose %v, %v", names(chosen), err)
	}
	for _, bad := range []options{
		{tier: "some", only: everything, lanes: 1, repeat: 1},
		{tier: "test", only: regexp.MustCompile("nothing"), lanes: 1, repeat: 1},
		{tier: "test", only: everything, lanes: 0, repeat: 1},
		{tier: "ci", share: "8/7", only: everything, lanes: 1, repeat: 1},
		{tier: "ci", share: "x", only: everything, lanes: 1, repeat: 1},
	} {
		if _, _, err := choose(aList(), bad); err == nil {
			t.Errorf("%+v was not refused", bad)
		}
	}
}

// TestQueueKeepsLanesOnTheirCluster protects the clusters' start, which is what a change of the site costs: a lane
// stays where it is as long as there is work, and every job is handed out once.
func TestQueueKeepsLanesOnTheirCluster(t *testing.T) {
	t.Parallel()
	q := &queue{onSite: map[site]int{}, jobs: []job{
		{name: "a", site: pair, seconds: 30}, {name: "b", site: wide, seconds: 20},
		{name: "c", site: wide, seconds: 10}, {name: "d", site: pair, seconds: 5},
		{name: "e", site: bench, seconds: 100},
	}}
	at := site("")
	var got []string
	for j, more := q.next(at, pair, wide); more; j, more = q.next(at, pair, wide) {
		got = append(got, j.name)
		at = j.site
	}
	if order := strings.Join(got, " "); order != "a d b c" {
		t.Errorf("the lane got %s, want a d b c", order)
	}
	if j, more := q.next("", bench); !more || j.name != "e" {
		t.Errorf("the job without a cluster was not left: %v", j)
	}
}

// TestTheRestEndsInTime protects CI on a slow machine: jobs of the rest start after all others and not after their
// time, and the report lists those that did not run.
func TestTheRestEndsInTime(t *testing.T) {
	t.Parallel()
	jobs := []job{
		{name: "long", tier: rest, site: pair, seconds: 90}, {name: "sample", tier: sample, site: wide, seconds: 20},
		{name: "core", site: pair, seconds: 10},
		{name: "lint", tier: check, site: bench, seconds: 5}, {name: "other", tier: rest, site: wide, seconds: 1},
	}
	order := func(restUntil time.Time) (string, *queue) {
		q := &queue{onSite: map[site]int{}, jobs: slices.Clone(jobs), restUntil: restUntil}
		var got []string
		at := site("")
		for j, more := q.next(at, pair, wide); more; j, more = q.next(at, pair, wide) {
			got, at = append(got, j.name), j.site
		}
		return strings.Join(got, " "), q
	}
	if got, q := order(time.Now().Add(time.Hour)); got != "sample core long other" || len(q.leftOut) > 0 {
		t.Errorf("in time, the lane got %s, and %v was left out", got, names(q.leftOut))
	}
	got, q := order(time.Now().Add(-time.Second))
	if got != "sample core" || !slices.Equal(names(q.leftOut), []string{"long", "other"}) {
		t.Errorf("too late, the lane got %s, and %v was left out", got, names(q.leftOut))
	}
	if j, more := q.next("", bench); !more || j.name != "lint" {
		t.Errorf("what must run was left out: %v", j)
	}
}

// TestReadEvents protects the verdict: a failure is never lost, whether of a test, of a package that does not build, or
// of a program that ends early.
func TestReadEvents(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		events                  string
		passed, failed, skipped int
	}{
		"a pass and a failure": {`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: broken\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- FAIL: TestB (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}`, 1, 1, 0},
		"a package that does not build": {`{"ImportPath":"p","Action":"build-output","Output":"x.go:1: undefined: y\n"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`, 0, 1, 0},
		"a program that ends early": {`{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}`, 1, 1, 0},
		"a skip": {`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: needs the moon\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`, 0, 0, 1},
		"words of the go command": {
			"go: downloading x\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"TestA\"}", 1, 0, 0,
		},
		"no package at all": {"", 0, 0, 0},
	} {
		results, err := readEvents(strings.NewReader(test.events), io.Discard)
		var passed, failed, skipped int
		for _, r := range results {
			switch {
			case r.failed:
				failed++
			case r.skipped != "":
				skipped++
			default:
				passed++
			}
		}
		if failed > 0 && strings.Contains(test.events, "_test.go") &&
			!strings.Contains(results[len(results)-1].why, "b_test.go:3: broken") {
			t.Errorf("%s: the failed test does not say why: %+v", name, results)
		}
		if err != nil || passed != test.passed || failed != test.failed || skipped != test.skipped {
			t.Errorf("%s: %d passed, %d failed, %d skipped, want %d, %d, %d: %v", name, passed, failed, skipped,
				test.passed, test.failed, test.skipped, err)
		}
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add(`{"Action":"fail","Package":"p","Test":"TestA"}`)
	f.Add("FAIL\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := readEvents(strings.NewReader(text), io.Discard); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// TestReport protects the contract for scripts: the last line is `N passed, M failed`, and a job that could not run is
// a failure.
func TestReport(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("what the job wrote\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	jobs := []job{{part: "unit", name: "unit"}, {part: "e2e", name: "e2e"}, {part: "e2e", name: "never begun"}}
	var talk, out strings.Builder
	r := newReport(&talk, jobs, 1)
	r.finished(jobs[0], []result{
		{name: "p TestA"}, {name: "p TestB", failed: true, why: "    b_test.go:3: broken\n"},
		{name: "p TestC", skipped: "why"},
	}, nil, 0, log)
	r.finished(jobs[1], nil, fmt.Errorf("no cluster"), 0, log)
	if failed := r.print(&out, nil, nil, 0, 1); !failed {
		t.Error("the report says that nothing failed")
	}
	if got := lastLine([]byte(out.String())); got != "1 passed, 3 failed, 1 skipped" {
		t.Errorf("the last line is %q", got)
	}
	for _, want := range []string{
		"FAILED unit: p TestB\n        b_test.go:3: broken\n", "FAILED e2e: no cluster\n    what the job wrote\n",
		"1 jobs did not run",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(talk.String(), "what the job wrote") {
		t.Errorf("the log of a failed job is not shown:\n%s", talk.String())
	}
}

// TestEveryCrashGroupRuns protects the crash matrix: a group that test/crash has and the list lacks would never run.
func TestEveryCrashGroupRuns(t *testing.T) {
	t.Parallel()
	found := 0
	for file, pattern := range map[string]string{
		"kills.go": `name: +"([^"]+)"`, "cuda.go": `(?:name: +|cudaInject = )"([^"]+)"`, "ttl.go": `trial\{"([^"]+)"`,
		"layers.go": `(?:name: +|layers = )"([^"]+)"`,
		"edits.go":  `group = "([^"]+)"`, "devices.go": `(?:name: {4}|trial\{)"([^"]+)"`,
		"network.go":      `name: {4}"([^"]+)"`,
		"disturbances.go": `trial\{"([^"]+)"`, "outages.go": `group: "([^"]+)"`,
	} {
		text, err := os.ReadFile(filepath.Join("..", "crash", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found++
			if _, listed := crashGroups()[group[1]]; !listed {
				t.Errorf("test/crash/%s has the group %q, which no job runs", file, group[1])
			}
		}
	}
	if found < len(crashGroups()) {
		t.Errorf("only %d groups were found in test/crash, of %d that are listed", found, len(crashGroups()))
	}
}

// TestCrashResults: a trial that failed is there by its name, with what it said; one that said nothing is counted all
// the same.
func TestCrashResults(t *testing.T) {
	const out = "XID 79   kill\nrun      FAIL\n\nFAIL xid 79, after write, kill: the taint is still there\nsecond line\n\nrestored 2 of 4\n"
	var failed []string
	results := crashResults("-sample", out, 2, 4)
	for _, r := range results {
		if r.failed {
			failed = append(failed, r.name+why(r.why))
		}
	}
	want := []string{
		"xid 79, after write, kill\n    the taint is still there\n    second line", "crash -sample, trial 4",
	}
	if len(results) != 4 || !slices.Equal(failed, want) {
		t.Errorf("of %d trials failed %q, want %q of 4", len(results), failed, want)
	}
}

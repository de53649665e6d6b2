package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// list returns all that there is to run. The end-to-end tests come from the tree and from tests.tsv, the scenarios from
// their folder.
func list() ([]job, error) {
	jobs := []job{
		{
			part: "unit tests (-race)", name: "unit", tier: core, site: first, seconds: 300,
			run: unitTests("-short", "./..."),
		},
		{
			part: "CUDA shim", name: "shim", tier: core, site: own, seconds: 120,
			run: command("env", "CACHED=1", "hack/test-shim.sh"),
		},
		{
			part: "shim as committed", name: "verify-shim", tier: check, site: bench, seconds: 15,
			run: command("make", "--no-print-directory", "verify-shim"),
		},
		{
			part: "lint", name: "lint", tier: check, site: bench, seconds: 120,
			run: command("make", "--no-print-directory", "lint"),
		},
		{
			part: "allocations", name: "allocs", tier: check, site: bench, seconds: 25,
			run: command("go", "run", "./hack/allocs"),
		},
		{part: "demo", name: "demo", tier: check, site: own, seconds: 30, run: demo},
		{
			part: "unit tests (-race)", name: "unit, whole corpora", tier: rest, site: first, seconds: 90,
			run: unitTests("./pkg/doctor/..."),
		},
		{part: "fuzzing", name: "fuzz", tier: rest, site: bench, seconds: 80, run: fuzz},
		{part: "release and krew, offline", name: "krew", tier: rest, site: bench, seconds: 350, run: krew},
		{
			part: "kernel module in VMs", name: "kmod", tier: rest, site: bench, seconds: 100,
			run: command("hack/test-kmod.sh"),
		},
	}
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	tests, err := endToEnd(dir)
	if err != nil {
		return nil, err
	}
	scenarios, err := scenarios(dir)
	if err != nil {
		return nil, err
	}
	return slices.Concat(jobs, tests, scenarios, crashes()), nil
}

// command runs one program that says by its exit code whether all is well.
func command(name string, args ...string) func(*bay) ([]result, error) {
	return func(b *bay) ([]result, error) {
		return one(strings.Join(append([]string{filepath.Base(name)}, args...), " "), b.command(name, args...).Run())
	}
}

// one returns the result of a job that has only one.
func one(name string, err error) ([]result, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return []result{{name: name}}, nil
}

// demo runs `make demo` as the README has it, on the cluster that it starts, and takes that down.
func demo(b *bay) ([]result, error) {
	run := func(target string) error {
		cmd := b.command("make", "--no-print-directory", target)
		cmd.Env = os.Environ() // the default cluster, not the lane's
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("make %s: %w", target, err)
		}
		return nil
	}
	if err := errors.Join(run("demo"), run("cluster-down")); err != nil {
		return nil, err
	}
	return []result{{name: "demo"}}, nil
}

func fuzz(b *bay) ([]result, error) {
	cmd := b.command("go", append(append([]string{"test"}, raceBuild()[1:]...), "./pkg/containerd", "-run", "^$",
		"-fuzz", "FuzzBreakRestore", "-fuzztime", "60s")...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	return one("FuzzBreakRestore", cmd.Run())
}

// krew runs in a clone: what is released comes from the commit.
func krew(b *bay) ([]result, error) {
	clone, err := os.MkdirTemp("", "gpu-fault-krew-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(clone) }()
	if err := b.command("git", "clone", "-q", ".", clone).Run(); err != nil {
		return nil, fmt.Errorf("clone the repository: %w", err)
	}
	return one("test-krew", b.command("make", "--no-print-directory", "-C", clone, "test-krew").Run())
}

// testsFile has what is known of each end-to-end test: package, name, seconds, and core, rest, or alone: of the rest,
// and when nothing else runs on the machine. A test that is not in it is core.
const testsFile = "test/suite/tests.tsv"

// chunk is for how long, about, one job of end-to-end tests runs, in seconds: long enough to be worth a process, short
// enough that all lanes end together.
const chunk = 40

// Tests whose names begin with attackPrefix are the part attacks: each of their subtests is an attack, and passes when
// it held.
const (
	attackPrefix = "TestAttack"
	attacks      = "attacks"
)

// endToEnd returns a job for each group of tests of a package that takes about as long as a chunk. Tests that run in
// parallel stay together.
func endToEnd(root string) ([]job, error) {
	tests, err := clusterTests(root)
	if err != nil {
		return nil, err
	}
	known, err := readTests(filepath.Join(root, testsFile))
	if err != nil {
		return nil, err
	}
	type key struct {
		pkg      string
		part     string
		tier     tier
		parallel bool
		site     site
	}
	groups := map[key][]testFunc{}
	for _, t := range tests {
		part := "end to end"
		if strings.HasPrefix(t.name, attackPrefix) {
			part = attacks
		}
		k := key{t.pkg, part, known[t.pkg+" "+t.name].tier, t.parallel, cmp.Or(known[t.pkg+" "+t.name].site, pair)}
		groups[k] = append(groups[k], t)
	}
	var jobs []job
	for k, group := range groups {
		slices.SortFunc(group, func(a, b testFunc) int { return cmp.Compare(a.name, b.name) })
		for number := 1; len(group) > 0; number++ {
			var names []string
			var seconds, longest float64
			// Two at a time is what go test does with two processors.
			for len(group) > 0 && (len(names) == 0 || seconds < chunk) {
				each := 10.0 // of a test that nobody has measured
				if k, measured := known[k.pkg+" "+group[0].name]; measured {
					each = k.seconds
				}
				longest = max(longest, each)
				if k.parallel {
					each /= 2
				}
				seconds += each
				names, group = append(names, group[0].name), group[1:]
			}
			word := map[bool]string{true: "parallel "}[k.parallel] + map[tier]string{rest: "rest "}[k.tier] +
				map[site]string{alone: "alone "}[k.site]
			if k.part == attacks {
				word += "attacks "
			}
			jobs = append(jobs, job{
				part: k.part, name: fmt.Sprintf("e2e %s %s%d: %s", k.pkg, word, number, strings.Join(names, " ")),
				tier: k.tier, site: k.site,
				seconds: max(seconds, longest), pkg: k.pkg, run: clusterTest(k.pkg, names),
			})
		}
	}
	return jobs, nil
}

// known is a line of tests.tsv.
type known struct {
	seconds float64
	tier    tier
	site    site // alone; empty: where all are
}

// readTests reads tests.tsv, by package and name.
func readTests(path string) (map[string]known, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]known{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s:%d: must have four columns: package, test, seconds, tier", path, number)
		}
		k := known{}
		k.seconds, err = strconv.ParseFloat(fields[2], 64)
		switch fields[3] {
		case "core":
		case "rest":
			k.tier = rest
		case "alone":
			k.tier, k.site = rest, alone
		default:
			err = errors.New("supported values: core, rest, alone")
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: seconds %q, tier %q: %w", path, number, fields[2], fields[3], err)
		}
		all[fields[0]+" "+fields[1]] = k
	}
	return all, nil
}

// seconds of an attempt, from the start of its exercise to the end.
const attemptSeconds = 22

// scenarios returns two plays of each: every solution and wrong fix with two seeds, and a sample of both; and a play of
// its cheats.
func scenarios(root string) ([]job, error) {
	files, err := filepath.Glob(filepath.Join(root, "pkg/scenario/packs/*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no scenarios in pkg/scenario/packs: %w", err)
	}
	var jobs []job
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var pack struct {
			Sealed struct{ Solutions, WrongFixes []any } `json:"sealed"`
		}
		if err := yaml.Unmarshal(text, &pack); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		attempts := len(pack.Sealed.Solutions) + len(pack.Sealed.WrongFixes)
		jobs = append(jobs, job{
			part: "scenarios", name: "scenario " + name + " sample", tier: sample, site: pair,
			seconds: 2 * attemptSeconds, run: play(name, "1", "--sample"),
		})
		for _, seed := range []string{"1", "2"} {
			jobs = append(jobs, job{
				part: "scenarios", name: "scenario " + name + " seed " + seed, tier: rest, site: pair,
				seconds: attemptSeconds * float64(attempts), run: play(name, seed),
			})
		}
		cheats, err := cheatJob(root, name, string(text))
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, cheats)
	}
	return jobs, nil
}

// played is one attempt, as `scenario selftest -o json` has it.
type played struct {
	Scenario, Attempt, Wanted, Got, Why string
	Seed                                int64
	OK                                  bool
	Broken, Grade, Took                 time.Duration
}

// play breaks, solves, wrongly fixes, grades and ends a scenario, with the candidate's own rights.
func play(name, seed string, flags ...string) func(*bay) ([]result, error) {
	return func(b *bay) ([]result, error) { return selftest(b, name, seed, append([]string{name}, flags...)...) }
}

// selftest runs `scenario selftest` with arguments that name the scenario.
func selftest(b *bay, name, seed string, args ...string) ([]result, error) {
	if err := b.lane.scenarios(b); err != nil {
		return nil, err
	}
	cmd := b.command(b.plugin, append([]string{"scenario", "selftest", "--seeds", seed, "--yes", "-o", "json",
		"--allow-control-plane", "--allow-majority", "--allow-last-gpu-node"}, args...)...)
	cmd.Stdout = nil
	out, err := cmd.Output()
	var list struct{ Items []played }
	if jsonErr := json.Unmarshal(out, &list); jsonErr != nil || len(list.Items) == 0 {
		return nil, fmt.Errorf("selftest of %s, seed %s, printed %q: %w", name, seed, out, cmp.Or(err, jsonErr))
	}
	var results []result
	for _, p := range list.Items {
		results = append(results, result{
			name: fmt.Sprintf("%s seed %d, %s", p.Scenario, p.Seed, p.Attempt), seconds: p.Took.Seconds(), row: p,
		})
		if !p.OK {
			last := &results[len(results)-1]
			last.failed, last.why = true, fmt.Sprintf("wanted %s, got %s: %s", p.Wanted, p.Got, p.Why)
		}
	}
	return results, nil
}

// crashGroups returns the groups of the crash matrix that are not exercises, with the seconds that each takes.
func crashGroups() map[string]float64 {
	return map[string]float64{
		"xid 79": 60, "runtime break": 120, "runtime break --no-restart": 60, "revert of a runtime break": 120,
		"device unhealthy": 90, "revert of unhealthy devices": 60, "unhealthy devices, disturbed": 120,
		"network partition": 120, "revert of a network partition": 90,
		"cuda inject":          120,
		"revert of a cuda run": 120, "xid in every layer": 900, "revert of every layer": 400,
		"disturbed": 150, "the time is up, nobody reverts": 150,
	}
}

// crashes returns the groups of the crash matrix, each with the seconds that it takes, and a sample: one crash at each
// kind of step.
func crashes() []job {
	jobs := []job{
		{part: "crash matrix", name: "crash sample", tier: sample, site: wide, seconds: 150, run: crash("-sample")},
	}
	for group, seconds := range crashGroups() {
		jobs = append(jobs, job{
			part: "crash matrix", name: "crash group " + group, tier: rest, site: wide, seconds: seconds,
			run: crash("-group", "^"+regexp.QuoteMeta(group)+"$"),
		})
	}
	return jobs
}

const crashPackage = "./test/crash"

// restored matches the last line of test/crash.
var restored = regexp.MustCompile(`^restored (\d+) of (\d+)$`)

// crash kills the client of the plugin, and what it depends on, at every step that the arguments choose.
func crash(args ...string) func(*bay) ([]result, error) {
	return func(b *bay) ([]result, error) {
		cmd := b.command(b.programs[crashPackage],
			append([]string{"-state", b.lane.state(), "-plugin", b.plugin}, args...)...)
		cmd.Stdout = nil
		out, err := cmd.Output()
		_, _ = b.log.Write(out)
		counts := restored.FindStringSubmatch(lastLine(out))
		if counts == nil || counts[2] == "0" {
			return nil, fmt.Errorf("the crash matrix did not come to its end: %w",
				cmp.Or(err, fmt.Errorf("no trial matches %q", args)))
		}
		right, _ := strconv.Atoi(counts[1])
		all, _ := strconv.Atoi(counts[2])
		return crashResults(strings.Join(args, " "), string(out), right, all), nil
	}
}

// failedTrial matches the line of test/crash that names a trial after which not everything came back, and what
// follows it.
var failedTrial = regexp.MustCompile(`(?m)^FAIL (.+?): (.+(?:\n.+)*)`)

// crashResults returns the trials; those that failed say why.
func crashResults(args, out string, right, all int) []result {
	results := make([]result, right)
	for i := range results {
		results[i] = result{name: fmt.Sprintf("crash %s, trial %d", args, i+1)}
	}
	for _, trial := range failedTrial.FindAllStringSubmatch(out, all-right) {
		results = append(results, result{name: trial[1], failed: true, why: trial[2]})
	}
	for len(results) < all {
		results = append(results, result{name: fmt.Sprintf("crash %s, trial %d", args, len(results)+1), failed: true})
	}
	return results
}

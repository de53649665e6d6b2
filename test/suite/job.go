package main

import (
	"cmp"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A tier says which runs a job is part of.
type tier int

const (
	core   tier = iota // every run
	check              // of the tree rather than the program: .ci/run and `make test-all`
	rest               // `make test-all`, and a share of them in .ci/run
	sample             // in place of jobs of the rest, whose runs need no sample: `make test` and .ci/run
)

// A site is where a job runs.
type site string

const (
	// No cluster, and before all others: unit tests measure time, and keep the processors busy by themselves
	first site = "first"
	bench site = "no cluster" // beside the clusters, with the processor time that they leave
	pair  site = "pair"       // a cluster of two nodes with all that a user's node has
	wide  site = "wide"       // a cluster of six nodes with no more than the crash matrix needs
	own   site = "own"        // the job starts clusters itself
	alone site = "alone"      // a pair, when all other jobs have finished: the job changes the whole machine
)

// A job is what is run, reported and timed as one.
type job struct {
	part    string // of the report
	name    string
	tier    tier
	site    site
	seconds float64 // that it took when last measured
	pkg     string  // whose test program it runs; empty: none
	run     func(*bay) ([]result, error)
}

// A result is one test's.
type result struct {
	name    string
	seconds float64
	failed  bool
	skipped string // the reason; empty: it ran
	why     string // it failed, in its own last words
	// row is the test's line in a table of its part, such as the scenarios'.
	row any
}

// A bay is where one job runs: with its own log, and maybe a cluster.
type bay struct {
	*workshop
	lane *lane // nil: no cluster
	log  io.Writer
	// writes to the log; killed with all its children when the run is interrupted
	command func(name string, args ...string) *exec.Cmd
}

// choose returns the jobs that o asks for, those that take longest first, and those that are left out.
func choose(all []job, o options) (chosen, skipped []job, err error) {
	if !slices.Contains([]string{"test", "ci", "all"}, o.tier) {
		return nil, nil, fmt.Errorf("-tier %q: supported values: test, ci, all", o.tier)
	}
	if o.lanes < 1 || o.lanes > 9 || o.repeat < 1 {
		return nil, nil,
			fmt.Errorf("-lanes %d, -repeat %d: lanes must be 1 to 9, and repeat at least 1", o.lanes, o.repeat)
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b job) int {
		return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.name, b.name))
	})
	var inShare func(job) bool
	if o.tier == "ci" && o.only.String() == "" {
		k, n, err := parseShare(o.share)
		if err != nil {
			return nil, nil, err
		}
		shares := deal(all, n)
		inShare = func(j job) bool { return shares[j.name] == k }
	}
	for _, j := range all {
		wanted := j.tier == core
		switch {
		case o.only.String() != "":
			wanted = o.only.MatchString(j.name)
		case o.tier == "all":
			wanted = j.tier != sample
		case j.tier == sample:
			wanted = true
		case o.tier == "ci":
			wanted = j.tier == core || j.tier == check || inShare(j)
		}
		if wanted {
			chosen = append(chosen, j)
		} else if j.tier != sample && o.only.String() == "" {
			skipped = append(skipped, j)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, fmt.Errorf("no job has a name that matches %q: -list prints them", o.only)
	}
	return chosen, skipped, nil
}

// deal divides the rest, sorted by how long they take, into n shares of about equal length, by name.
func deal(sorted []job, n int) map[string]int {
	shares, load := map[string]int{}, make([]float64, n)
	for _, j := range sorted {
		if j.tier != rest {
			continue
		}
		least := 0
		for i := range load {
			if load[i] < load[least] {
				least = i
			}
		}
		shares[j.name] = least
		load[least] += max(j.seconds, 1)
	}
	return shares
}

// weeks is how many commits in a row play every job of the rest.
const week = 7

// parseShare reads 3/7, counted from 1, as the third of seven: 2, 7. Of a commit it is its number in the history.
func parseShare(text string) (k, n int, err error) {
	if text == "auto" {
		out, err := exec.Command("git", "rev-list", "--count", "HEAD").Output()
		if err != nil {
			return 0, 0, fmt.Errorf("count the commits: %w (-share 1/%d chooses without them)", err, week)
		}
		count, err := strconv.Atoi(strings.TrimSpace(string(out)))
		return count % week, week, err
	}
	first, last, found := strings.Cut(text, "/")
	k, kErr := strconv.Atoi(first)
	n, nErr := strconv.Atoi(last)
	if !found || kErr != nil || nErr != nil || k < 1 || k > n {
		return 0, 0, fmt.Errorf("-share %q: must be auto, or K/N such as 3/7", text)
	}
	return k - 1, n, nil
}

// printList prints a line for each job.
func printList(w io.Writer, chosen, skipped []job) {
	total := map[site]float64{}
	for _, j := range chosen {
		fmt.Fprintf(w, "%6.0fs  %-10s  %-22s  %s\n", j.seconds, j.site, j.part, j.name)
		total[j.site] += j.seconds
	}
	for _, s := range []site{first, bench, pair, wide, own, alone} {
		fmt.Fprintf(w, "%s: %s\n", s, time.Duration(total[s])*time.Second)
	}
	fmt.Fprintf(w, "%d jobs; left out: %d\n", len(chosen), len(skipped))
}

// Command suite runs this project's tests: one list of jobs (list.go), of which each of three tiers runs a part, side
// by side on clusters of their own.
//
//	make test                                  go run ./test/suite
//	.ci/run                                    go run ./test/suite -tier ci
//	make test-all                              go run ./test/suite -tier all
//	go run ./test/suite -list                  prints the jobs of a tier and runs nothing
//	go run ./test/suite -only 'crash|xid-79'   runs the jobs of any tier whose names match
//
// Standard output is the report: a table of parts, and `N passed, M failed` as the last line. Progress goes to standard
// error, and what each job wrote to .suite/logs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.tier, "tier", "test", "which jobs to run: test, ci or all")
	flag.StringVar(&o.share, "share", "auto",
		"with -tier ci, which share of the remaining jobs to run: auto (by the commit), or one such as 3/7")
	only := flag.String("only", "", "run the jobs of all tiers whose names match this `regexp`")
	flag.BoolVar(&o.list, "list", false, "print the jobs and their expected seconds; run nothing")
	flag.DurationVar(&o.restFor, "rest-for", 0,
		"run jobs of the rest last, and begin none after this `time`; 0: as all others")
	flag.IntVar(&o.lanes, "lanes", 7,
		"clusters at a time, those above 4 only while the processors idle; one of six nodes counts as two")
	flag.IntVar(&o.repeat, "repeat", 1, "run each job this many times")
	flag.StringVar(&o.measure, "measure", "", "write how long each end-to-end test took to this `file`: "+testsFile)
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := func() (err error) {
		if o.only, err = regexp.Compile(*only); err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		return run(ctx, o)
	}()
	stop()
	switch {
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	tier, share, measure string
	only                 *regexp.Regexp
	list                 bool
	lanes, repeat        int
	restFor              time.Duration
}

// errFailed reports that a job failed; the report has said which.
var errFailed = errors.New("a job failed")

func run(ctx context.Context, o options) error {
	start := time.Now()
	all, err := list()
	if err != nil {
		return err
	}
	chosen, skipped, err := choose(all, o)
	if err != nil {
		return err
	}
	if o.list {
		printList(os.Stdout, chosen, skipped)
		return nil
	}
	w, err := newWorkshop(ctx, o.lanes)
	if err != nil {
		return err
	}
	defer w.close()
	r := newReport(os.Stderr, chosen, o.repeat)
	late := perform(ctx, w, r, chosen, o)
	if o.measure != "" {
		if err := r.writeTimes(o.measure); err != nil {
			return err
		}
	}
	failed := r.print(os.Stdout, skipped, late, time.Since(start), w.pace.slowness())
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if failed {
		return errFailed
	}
	return nil
}

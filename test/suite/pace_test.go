package main

import (
	"testing"
	"testing/synctest"
)

// TestASlowMachineRunsFewerJobs protects a run on a machine that becomes slow: with all clusters at work, 19 tests of
// one ran into their timeouts, and a change did not land.
func TestASlowMachineRunsFewerJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPace(4)
		sit := func(weight int) chan func() {
			got := make(chan func(), 1)
			go func() { got <- p.sit(weight) }()
			synctest.Wait()
			return got
		}
		first, second, third := sit(1), sit(1), sit(1)
		for range 20 {
			p.finished(100, telling) // five times as long
			p.finished(0, telling-1) // not telling
		}
		if slow := p.slowness(); slow < 4.9 || slow > 5.1 {
			t.Errorf("jobs that take five times as long make the pace %.1f", slow)
		}
		wide := sit(2)
		for _, leave := range []chan func(){first, second} {
			(<-leave)()
			synctest.Wait()
		}
		if len(wide) != 0 {
			t.Error("on a slow machine, a wide job runs beside another")
		}
		(<-third)()
		synctest.Wait()
		if len(wide) != 1 {
			t.Fatal("a job does not get the seats that are free")
		}
		other := sit(1)
		for range 20 {
			p.finished(telling, telling)
		}
		synctest.Wait()
		if len(other) != 1 {
			t.Error("on a machine that is fast again, a job waits for the one that runs")
		}
		(<-wide)()
		(<-other)()
	})
}

// TestOneLaneServesEveryJob protects `-lanes 1`: a job that needs two seats would wait for ever.
func TestOneLaneServesEveryJob(t *testing.T) {
	t.Parallel()
	newPace(1).sit(2)()
}

// TestIdleProcessorsGetMoreJobs protects the time of a run: scenarios mostly wait, and four of them left two processors
// idle for 40 % of the time.
func TestIdleProcessorsGetMoreJobs(t *testing.T) {
	t.Parallel()
	p := newPace(6)
	for step, test := range []struct {
		idle         float64
		taken, seats int
	}{
		{idle: 0.9, taken: 2, seats: 4}, // nobody waits for a seat
		{idle: 0.4, taken: 4, seats: 5},
		{idle: 0.2, taken: 5, seats: 5},
		{idle: 0.4, taken: 5, seats: 6},
		{idle: 0.4, taken: 6, seats: 6}, // as many as there are clusters
		{idle: 0.01, taken: 6, seats: 5},
		{idle: 0.01, taken: 6, seats: 4},
		{idle: 0.01, taken: 6, seats: 4},
	} {
		p.taken = test.taken
		if p.adapt(test.idle); p.room() != test.seats {
			t.Errorf("step %d: processors that idle for %.2f of the time with %d jobs make %d seats, want %d", step,
				test.idle, test.taken, p.room(), test.seats)
		}
	}
}

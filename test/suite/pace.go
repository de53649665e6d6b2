package main

import (
	"context"
	"sync"
	"time"
)

// pace is how fast the machine works, and how many jobs it has room for: on a machine that has become slow, jobs side
// by side only make each other later, and what they test are then the timeouts. While the processors idle, as when all
// jobs wait for something to stay as it is, there is room for more.
type pace struct {
	mu      sync.Mutex
	changed *sync.Cond
	most    int // seats that there may be
	seats   int // that there are now: one for each pair of nodes
	taken   int
	slow    float64 // how many times as long jobs take as they did when last measured; at least 1
}

// usual is how many seats two processors can serve, whatever the jobs are.
const usual = 4

func newPace(most int) *pace {
	p := &pace{most: most, seats: min(most, usual), slow: 1}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// follow adds a seat whenever the processors had time left and no seat is free, and removes it when they are busy. idle
// returns the share of their time since its last call that nothing but work of low priority used.
func (p *pace) follow(ctx context.Context, idle func() float64) {
	const often = 15 * time.Second // a job that begins is busy first, and then waits
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.adapt(idle())
		}
	}
}

func (p *pace) adapt(idle float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case idle > 0.25 && p.taken >= p.seats:
		p.seats = min(p.seats+1, p.most)
	case idle < 0.08:
		p.seats = max(p.seats-1, min(p.most, usual))
	}
	p.changed.Broadcast()
}

// What a job of fewer seconds took says more about the cluster that it found than about the machine.
const telling = 20

// finished tells the pace how long a job took and how long it should have.
func (p *pace) finished(took, expected float64) {
	if expected < telling {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	const weight = 0.3 // of one job: one may be slow for reasons of its own
	p.slow = min(max(1, p.slow+weight*(min(took/expected, 8)-p.slow)), 8)
	p.changed.Broadcast()
}

// slowness returns how many times as long as usual tests may take.
func (p *pace) slowness() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// room returns how many seats there are at this pace: never fewer than a job may need.
func (p *pace) room() int {
	switch {
	case p.slow < 1.75:
		return p.seats
	case p.slow < 2.5:
		return min(p.seats, 3)
	default:
		return min(p.seats, 2)
	}
}

// sit waits until there is room for a job of the weight, and returns what ends that.
func (p *pace) sit(weight int) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	weight = min(weight, p.seats)
	for p.taken+weight > p.room() {
		p.changed.Wait()
	}
	p.taken += weight
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken -= weight
		p.changed.Broadcast()
	}
}

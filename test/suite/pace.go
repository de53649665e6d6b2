package main

import "sync"

// pace is how fast the machine works, and how many jobs it has room for: on a machine that has become slow, jobs side
// by side only make each other later, and what they test are then the timeouts.
type pace struct {
	mu      sync.Mutex
	changed *sync.Cond
	seats   int // one for each pair of nodes
	taken   int
	slow    float64 // how many times as long jobs take as they did when last measured; at least 1
}

func newPace(seats int) *pace {
	p := &pace{seats: seats, slow: 1}
	p.changed = sync.NewCond(&p.mu)
	return p
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

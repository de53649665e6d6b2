package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// On a busy machine one look at the node can take long. The next one must come soon all the same: with a pause of nine
// times as long, the phase was over before anybody looked again.
func TestAPhaseIsSeenAfterASlowLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, first, reached := time.Now(), true, false
		slow := phase{holds: func(*node) bool {
			if first {
				first = false
				time.Sleep(200 * time.Millisecond) // on the test's own clock, which does not wait
				return false
			}
			return time.Since(start) > 300*time.Millisecond
		}}
		exited := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(exited) })
		slow.await(nil, exited, func() { reached = true })
		if !reached {
			t.Error("the client ended before the phase was seen")
		}
	})
}

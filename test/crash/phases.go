package main

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// phase is a moment while the node is at work: the client says something, or something can be seen on the node.
type phase struct {
	name  string
	says  string
	holds func(n *node) bool
}

// says returns when the client says this.
func says(text string) phase { return phase{name: "says: " + text, says: text} }

// What can be seen on the node while it is broken and put back.
var (
	recorded = phase{name: "the record is on the node", holds: func(n *node) bool {
		found, _ := filepath.Glob(n.root + "/var/lib/gpu-fault/*")
		return len(found) > 0
	}}
	changed = phase{name: "the files are changed", holds: func(n *node) bool { return !n.configured() }}
	putBack = phase{name: "the files are put back", holds: (*node).configured}
	stopped = phase{name: "containerd is stopped", holds: func(n *node) bool {
		found, _ := filepath.Glob(n.root + "/run/service/containerd/pid")
		return len(found) == 0
	}}
)

// configured reports whether the runtime's configuration has the content of before. It reads no more than that: a look
// at everything took so long on a busy machine that the moment had passed by the next look.
func (n *node) configured() bool {
	for path, f := range n.was {
		if !f.Mode.IsRegular() {
			continue
		}
		now, err := os.ReadFile(n.root + path)
		if err != nil || string(now) != f.Data {
			return false
		}
	}
	return true
}

func (p phase) said(line string) bool { return p.says != "" && strings.Contains(line, p.says) }

// await calls do as soon as the phase is reached, unless the client has ended before. Looking takes a tenth of the time
// at most: on a slow machine, it would keep the node from reaching the phase. A look that was interrupted for long is
// no reason to look away for as long, or the phase passes unseen.
func (p phase) await(n *node, exited <-chan struct{}, do func()) {
	for took := time.Duration(0); ; {
		select {
		case <-exited:
			return
		case <-time.After(min(max(time.Millisecond, 9*took), 10*time.Millisecond)):
		}
		start := time.Now()
		if p.holds(n) {
			do()
			return
		}
		took = time.Since(start)
	}
}

// Package hostexec runs programs of the node within limits, and without the rights to change it.
package hostexec

import (
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// Command is a program of the node that is run within limits.
type Command struct {
	Root      hostfs.FS // its root directory
	Program   string    // where it lies there
	Args      []string
	Libraries string // LD_LIBRARY_PATH; empty for the usual ones
	Limit     time.Duration
	Most      int  // bytes of its output that are kept
	Last      bool // the last bytes, not the first
}

// ExitError is how a program failed by itself, with what it wrote.
type ExitError struct {
	Program string
	Err     error
	Said    string
}

func (e *ExitError) Error() string {
	if e.Said == "" {
		return fmt.Sprintf("%s: %v", e.Program, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Program, e.Err, e.Said)
}

func (e *ExitError) Unwrap() error { return e.Err }

// kept is a writer that keeps the first or the last bytes of what it gets.
type kept struct {
	most int
	last bool
	text []byte
	cut  bool
}

func (k *kept) Write(p []byte) (int, error) {
	if !k.last {
		room := min(len(p), k.most-len(k.text))
		k.text = append(k.text, p[:room]...)
		k.cut = k.cut || room < len(p)
		return len(p), nil
	}
	k.text = append(k.text, p...)
	if len(k.text) > 2*k.most { // seldom, as it copies
		k.trim()
	}
	return len(p), nil
}

func (k *kept) trim() {
	if over := len(k.text) - k.most; over > 0 && k.last {
		k.text, k.cut = append(k.text[:0], k.text[over:]...), true
	}
}

func (k *kept) String() string {
	k.trim()
	return string(k.text)
}

// UsualPath is PATH of a service of systemd.
const UsualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

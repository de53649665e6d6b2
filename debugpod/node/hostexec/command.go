// Package hostexec runs programs on the node with limits and without permission to change the node.
package hostexec

import (
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// Command is a program on the node, with limits for running it.
type Command struct {
	Root      hostfs.FS // root directory of the program
	Program   string    // path in Root
	Args      []string
	Libraries string // LD_LIBRARY_PATH; empty for the default
	Limit     time.Duration
	Most      int  // maximum number of output bytes to keep
	Last      bool // keep the last bytes instead of the first
}

// ExitError is the error of a program that failed, with its output.
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

// kept is a writer that keeps the first or the last bytes.
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
	if len(k.text) > 2*k.most { // trim rarely, because trimming copies the data
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

// UsualPath is the PATH of a systemd service.
const UsualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

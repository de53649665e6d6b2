package hostexec

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// capabilities returns a set of /proc/PID/status: CapBnd, CapEff.
func capabilities(t *testing.T, status, name string) uint64 {
	t.Helper()
	_, after, _ := strings.Cut(status, name+":")
	set, err := strconv.ParseUint(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]), 16, 64)
	if err != nil {
		t.Fatalf("%s in %q: %v", name, status, err)
	}
	return set
}

// TestProgramsCannotChangeTheNode holds that a program of the node may load no module and make no device node, and that
// we still may.
func TestProgramsCannotChangeTheNode(t *testing.T) {
	t.Parallel()
	var said []string
	out, err := Run(t.Context(),
		Command{Root: "/", Program: script(t, "cat /proc/self/status\n"), Limit: 20 * time.Second, Most: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	said = append(said, out)
	if os.Geteuid() == 0 { // Output changes the root directory
		out, err = Output(t.Context(), "/", "cat", "cat", "/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, out)
	}
	for _, status := range said {
		for _, c := range withheld() {
			bit := uint64(1) << c
			if capabilities(t, status, "CapEff")&bit != 0 ||
				os.Geteuid() == 0 && capabilities(t, status, "CapBnd")&bit != 0 {
				t.Errorf("a program of the node has capability %d:\n%s", c, status)
			}
		}
	}
	if now := boundingSet(); now != bounding {
		t.Errorf("the helper itself lost a capability: has %s, was started with %s", now, bounding)
	}
}

// bounding is what this process was started with.
var bounding = boundingSet()

func boundingSet() string {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err.Error()
	}
	_, after, _ := strings.Cut(string(raw), "CapBnd:")
	set, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(set)
}

// TestTheFirstThreadIsNeverChanged holds that what a thread loses is never lost by the process's first, which
// /proc/self tells of and which never ends.
func TestTheFirstThreadIsNeverChanged(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 2000 {
		all.Go(func() {
			if err := OnOwnThread(func() error {
				if unix.Gettid() == os.Getpid() {
					return errors.New("it ran on the first thread")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

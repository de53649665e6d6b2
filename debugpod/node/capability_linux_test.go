package node

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// capabilities is a set of /proc/PID/status: CapBnd, CapEff.
func capabilities(t *testing.T, status, name string) uint64 {
	t.Helper()
	_, after, _ := strings.Cut(status, name+":")
	set, err := strconv.ParseUint(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]), 16, 64)
	if err != nil {
		t.Fatalf("%s in %q: %v", name, status, err)
	}
	return set
}

// TestProgramsCannotChangeTheNode holds that a program of the node may load no module and make no device node, and that we still may.
func TestProgramsCannotChangeTheNode(t *testing.T) {
	t.Parallel()
	var said []string
	out, err := runCommand(t.Context(), command{root: "/", program: script(t, "cat /proc/self/status\n"), limit: 20 * time.Second, most: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	said = append(said, out)
	if os.Geteuid() == 0 { // runWithRoot changes the root directory
		out, err = runWithRoot(t.Context(), "/", "cat", "cat", "/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, out)
	}
	for _, status := range said {
		for _, c := range withheld() {
			bit := uint64(1) << c
			if capabilities(t, status, "CapEff")&bit != 0 || os.Geteuid() == 0 && capabilities(t, status, "CapBnd")&bit != 0 {
				t.Errorf("a program of the node has capability %d:\n%s", c, status)
			}
		}
	}
	if before, after := capabilitiesOf(t, "/proc/1/status"), capabilitiesOf(t, "/proc/self/status"); os.Geteuid() == 0 && before&after&(1<<16) != before&(1<<16) {
		t.Errorf("the helper itself lost a capability: %x, was %x", after, before)
	}
}

func capabilitiesOf(t *testing.T, file string) uint64 {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return capabilities(t, string(raw), "CapBnd")
}

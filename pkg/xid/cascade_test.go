package xid

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// TestCascades shows every group in one file, and reads every line back.
func TestCascades(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, g := range Groups() {
		if g.Description == "" || g.Source == "" || len(g.Drivers) == 0 || len(g.Codes) == 0 {
			t.Errorf("group %q is not documented", g.Name)
		}
		for i, driver := range g.Drivers {
			for j, code := range g.Codes {
				steps, err := Cascade(code, Options{
					PCI: gpu17, Driver: driver, Peers: []PCI{{Bus: 0x9b}},
					UUID: "GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3", Serial: "1794625612345",
				})
				if err != nil {
					t.Fatalf("Cascade(%d, %s): %v", code, driver, err)
				}
				// The other codes and drivers of a group differ little: one of each is enough to look at.
				show := i == 0 && j == 0 || g.Name == "nvlink5"
				if show {
					fmt.Fprintf(&b, "## %s: %d on %s\n", g.Name, code, driver)
				}
				last := time.Duration(0)
				for _, s := range steps {
					if show {
						fmt.Fprintf(&b, "%6d ms  %s\n", s.After.Milliseconds(), s.Event.Text())
					}
					checkEvent(t, s.Event)
					if s.After < last {
						t.Errorf("%s: time runs backwards", g.Name)
					}
					last = s.After
				}
				if steps[0].Event.Kind != KindUUID || steps[1].Event.Kind != KindSerial {
					t.Errorf("%s does not begin with the introduction of the GPU", g.Name)
				}
				if !slices.ContainsFunc(steps, func(s Step) bool { return s.Event.Code == code }) {
					t.Errorf("%s: no line with the code %d", g.Name, code)
				}
				if driver == R535 && slices.ContainsFunc(steps, func(s Step) bool { return s.Event.Code == 154 }) {
					t.Errorf("%s: R535 has no 154", g.Name)
				}
			}
		}
	}
	golden.Compare(t, "cascades.golden", b.String())
}

func TestCascadeOptions(t *testing.T) {
	t.Parallel()
	who := Process{PID: 7, Name: "train"}
	steps, err := Cascade(48, Options{PCI: gpu17, Process: who, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	address := map[string]bool{}
	for _, s := range steps {
		if p := s.Event.Process; p != who && p != (Process{}) {
			t.Errorf("%s blames another process", s.Event.Text())
		}
		if s.Event.Code == 48 && s.Event.Process == (Process{}) || s.Event.Code == 171 {
			_, at, _ := strings.Cut(s.Event.Body, "physAddr 0x")
			at, _, _ = strings.Cut(at, " ")
			address[at] = true
		}
	}
	if len(address) != 1 {
		t.Errorf("48 and 171 name different addresses: %v", address)
	}
	for want, err := range map[string]error{
		"codes with a cascade: 13, 31, 43, 48, 62, 63, 64, 74, 79": second(Cascade(8, Options{})),
		"this XID follows others":                                  second(Cascade(45, Options{})),
		"R580, R595, not with R535":                                second(Cascade(120, Options{Driver: R535})),
		"omit the message":                                         second(Cascade(79, Options{Message: "x"})),
		"invalid GPU UUID":                                         second(Cascade(79, Options{UUID: "x"})),
		"does not identify its GPU": second(
			Cascade(79, Options{UUID: "MIG-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3"}),
		),
		"contains a space":                second(Cascade(79, Options{Serial: "a b"})),
		"control character U+0007 at byt": second(Cascade(79, Options{Serial: "a\a"})),
	} {
		wantError(t, err, want)
	}
}

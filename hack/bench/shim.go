package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// shimLine matches a line of hack/bench-shim.sh: a label, then the nanoseconds for a call to cuMemAlloc and for a call
// to cuLaunchKernel.
var shimLine = regexp.MustCompile(`(?m)^(\S[^\d\n]*?) +(\d+\.\d+) +(\d+\.\d+)`)

// measureShim compares a call to cuLaunchKernel through the shim with a direct call, and with a call through an
// interposer that only exports the driver's functions and reads a toggle file on each call. The figures are the best of
// the rounds.
func (b *bench) measureShim(ctx context.Context) ([]row, error) {
	cmd := exec.CommandContext(ctx, "hack/bench-shim.sh")
	cmd.Env = append(os.Environ(), "CALLS=5000000", fmt.Sprintf("ROUNDS=%d", b.rounds))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("hack/bench-shim.sh: %w", err)
	}
	launch := map[string]sample{}
	for _, m := range shimLine.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		launch[m[1]] = sample{ns}
	}
	const direct, toggle = "direct", "toggle file on each call"
	var rows []row
	for _, c := range [][2]string{
		{"shim disarmed", direct}, {"shim armed for these calls", direct}, {"shim armed for these calls", toggle},
	} {
		ours, other := launch[c[0]], launch[c[1]]
		if ours == nil || other == nil {
			return nil, errors.Join(fmt.Errorf("no line %q or %q in the output of hack/bench-shim.sh", c[0], c[1]))
		}
		against := map[string]string{direct: "direct call", toggle: toggle}[c[1]]
		rows = append(rows, compared("call, "+c[0], "ns", ours, against, other).judged())
	}
	return rows, nil
}

package engine

import (
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
)

// adapt rewrites the commands of fixes for the platforms of their nodes: Talos nodes have no shell, and OpenShift nodes
// are accessed with oc debug.
func (r *Result) adapt(f *facts.Facts) {
	for i := range r.Findings {
		fix := &r.Findings[i].Fix
		var commands []string
		note := ""
		for _, line := range fix.Commands {
			node, command, ok := onHost(line)
			n := f.Node(node)
			if !ok || n == nil {
				commands = append(commands, line)
				continue
			}
			p, known := platform.Of(string(n.Distribution))
			if !known || p.UsesSSH() {
				commands = append(commands, line)
				continue
			}
			if other, ok := p.On(node, command); ok {
				commands = append(commands, other)
			} else {
				note = p.Note
			}
		}
		if len(fix.Commands) > 0 {
			fix.Commands = slices.Compact(commands)
		}
		if note != "" && !strings.Contains(fix.Text, note) {
			fix.Text = strings.TrimSpace(strings.TrimSuffix(fix.Text, ".") + ". " + note)
		}
	}
}

// onHost splits a command built by shell.OnHost into the node and the command.
func onHost(line string) (node, command string, ok bool) {
	rest, ok := strings.CutPrefix(line, "ssh ")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, " ")
}

package facts

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

func FuzzKernelRecord(f *testing.F) {
	f.Add("kernel log, sequence 812",
		"NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=python, GPU has fallen off the bus.")
	f.Add("sequence 99999999999999999999999", "")
	f.Fuzz(func(t *testing.T, source, text string) {
		host := &api.Diagnosis{KernelLog: []api.KernelRecord{
			{Sequence: 812, Text: "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=python, GPU has fallen off the bus."},
		}}
		if r, there := KernelRecord(host, snapshot.RunEvidence{Source: source, Text: text}); there &&
			!strings.Contains(text, r.Text) {
			t.Errorf("%q is not in %q", r.Text, text)
		}
	})
}

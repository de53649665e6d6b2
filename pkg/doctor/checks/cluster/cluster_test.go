package cluster

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// Whatever agents write, it is read without a fault.
func FuzzXIDsIn(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:17:00): 79, GPU ErrorCode:79 XID=13")
	f.Fuzz(func(t *testing.T, text string) {
		for _, code := range facts.XIDsIn(text) {
			if code < 0 || code > 9999 {
				t.Errorf("XID %d of %q", code, text)
			}
		}
		minorsApart(text, "v1.36.3")
	})
}

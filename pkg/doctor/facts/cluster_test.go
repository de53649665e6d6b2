package facts

import (
	"testing"
)

// TestXIDsIn verifies that XIDs are found in all formats that agents use.
func TestXIDsIn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"NVRM: Xid (PCI:0000:17:00): 79, GPU": 79, "NvidiaXID95Error": 95, "ErrorCode:119 PCI:0002:00:00": 119,
		"Xid: 48": 48,
	} {
		if got := XIDsIn(text); len(got) == 0 || got[0] != want {
			t.Errorf("xidsIn(%q) = %v, want %d", text, got, want)
		}
	}
	if got := XIDsIn("no such thing, 79"); len(got) > 0 {
		t.Errorf("XIDs %v where none is named", got)
	}
}

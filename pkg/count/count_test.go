package count

import "testing"

func TestOf(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"0 pods": Of(0, "pod"), "1 pod": Of(1, "pod"), "2 GPU nodes": Of(2, "GPU node"),
		"1 process": Of(int32(1), "process"), "3 processes": Of(int64(3), "process"),
		"2 NVSwitches": Of(uint64(2), "NVSwitch"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

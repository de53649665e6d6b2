package access

import (
	"testing"
)

// TestExceededQuota tests that only messages about a single resource are parsed.
func TestExceededQuota(t *testing.T) {
	t.Parallel()
	const gpu = "requests.nvidia.com/gpu"
	for message, want := range map[string]exceededQuota{
		`pods "x" is forbidden: exceeded quota: gpuq, requested: ` + gpu + `=1, used: ` + gpu + `=2, limited: ` + gpu +
			`=2`: {"gpuq", gpu, 1, 2, 2},
		`exceeded quota: gpuq, requested: cpu=1,` + gpu + `=1, used: cpu=1,` + gpu + `=2, limited: cpu=1,` + gpu +
			`=2`: {},
		`exceeded quota: gpuq, requested: ` + gpu + `=1, used: ` + gpu + `=2, limited: ` + gpu +
			`=2, and more that someone appended`: {},
		`exceeded quota: gpuq, requested: memory=1Gi, used: memory=2Gi, limited: memory=2Gi`: {},
	} {
		if got, ok := exceeded(message); got != want || ok != (want.quota != "") {
			t.Errorf("%q: %+v %t, want %+v", message, got, ok, want)
		}
	}
}

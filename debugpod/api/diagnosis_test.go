package api

import (
	"strings"
	"testing"
)

func TestDiagnoseValidate(t *testing.T) {
	t.Parallel()
	for unit, want := range map[string]bool{
		"kubelet.service": true, "snap.k8s.containerd.service": true, "getty@tty1.service": true,
		`a\x2db.service`: true, "crio.service": true,
		"": false, "kubelet": false, "-o.service": false, "--merge": false, "*.service": false, "a b.service": false,
		"a/b.service": false, "[ab].service": false,
		"x\n.service": false, "kubelet.service\n": false, strings.Repeat("x", 250) + ".service": false,
	} {
		if err := (Diagnose{Units: []string{unit}}).Validate(); (err == nil) != want {
			t.Errorf("%q: %v", unit, err)
		}
	}
	if err := (Diagnose{Units: make([]string, maxUnits+1)}).Validate(); err == nil {
		t.Error("any number of units is taken")
	}
	if _, err := DecodeRequest([]byte(`{"protocol":1,"diagnose":{"units":["*"]}}`)); err == nil ||
		err.Code != CodeBadRequest {
		t.Errorf("the helper takes a pattern: %v", err)
	}
}

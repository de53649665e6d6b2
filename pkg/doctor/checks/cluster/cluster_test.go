package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// FuzzXIDsIn tests that any message from an agent can be parsed.
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

// TestFatalLine tests that the title contains the error with which the kubelet exited, but no older error after which
// the kubelet started.
func TestFatalLine(t *testing.T) {
	t.Parallel()
	const fatal = `Jan 01 a kubelet[7]: E0101 12:00:00.1 7 run.go:74] "command failed" err="failed to load kubelet config"`
	for _, c := range []struct{ journal, want string }{
		{fatal + "\nJan 01 a systemd[1]: kubelet.service: Failed with result 'exit-code'.\n", "failed to load kubelet config"},
		{fatal + "\nJan 01 a kubelet[8]: I0101 12:00:09.1 8 server.go:1] Started kubelet\n", ""},
		{"Jan 01 a k3s[9]: time=\"x\" level=fatal msg=\"token is required\"", "token is required"},
	} {
		n := &facts.Node{
			Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			Host: &api.Diagnosis{Journals: map[string]string{"kubelet.service": c.journal}},
		}
		var found finding.Finding
		if describeFatal(n, &found); !strings.Contains(found.Title, c.want) || c.want == "" && found.Title != "" {
			t.Errorf("the title is %q, want %q", found.Title, c.want)
		}
	}
}

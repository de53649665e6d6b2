package version

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestWithoutAKubeconfig: the plugin's own version needs no cluster. Who just installed it has none yet.
func TestWithoutAKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, output := range []string{"", "json"} {
		streams, _, out, stderr := genericiooptions.NewTestIOStreams()
		cmd := NewCommand(kube.NewConnection(streams), streams)
		cmd.SetArgs([]string{"-o", output})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("-o %q: %v", output, err)
		}
		text := strings.ToLower(out.String())
		if !strings.Contains(text, "client") || strings.Contains(text, "server") || stderr.Len() > 0 {
			t.Errorf("-o %q: %s%s", output, out, stderr)
		}
	}
}

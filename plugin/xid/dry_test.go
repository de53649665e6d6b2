package xid

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestADryRunShowsWhatARunShows: who tries a command first reads which detectors see it, and that the node may reboot.
func TestADryRunShowsWhatARunShows(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	streams, _, _, stderr := genericiooptions.NewTestIOStreams()
	connection := kube.NewConnection(streams)
	*connection.KubeConfig = config
	cmd := NewCommand(connection, streams)
	cmd.SetArgs([]string{"79", "node-a", "--dry-run=client"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"DETECTOR", "syslog-health-monitor may cordon, drain and reboot the node", "Undo: none", "Would write", "Xid",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%q is missing:\n%s", want, stderr)
		}
	}
}

package plugin

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/rbac"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// TestARefusalNamesTheFeature: who may not do something is told a command to paste, and never a placeholder.
func TestARefusalNamesTheFeature(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"you are nobody"}`,
		))
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"research"}}],
		"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}],"users":[{"name":"u","user":{"token":"x"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"list":                                  "--for list |",
		"revert --all --yes":                    "--for revert |",
		"leftovers":                             "--for leftovers |",
		"runtime show node-a":                   "--for runtime |",
		"device list node-a":                    "--for device |",
		"device unhealthy node-a --gpu 0 --yes": "--for device |",
		"network partition --pod a":             "--for network |",
		"cuda status":                           "--for cuda -n research |",
		"scenario status":                       "--for scenario |",
		"doctor --api-only --no-images":         "--for doctor --api-only |",
		"doctor --no-images":                    "--for doctor |",
		"doctor --fix fault.injected --yes --no-images":   "--for doctor,fix |",
		"leftovers --nodes":                               "--for leftovers,xid |",
		"scenario end --yes":                              "--for scenario |",
		"xid 79 node-a --yes":                             "--for xid |",
		"xid 48 node-a --layers kernel,nvml --yes":        "--for xid,nvml |",
		"xid 31 node-a --real -n ml --yes":                "--for xid,real-xid -n ml |",
		"xid 79 node-a --yes --expect cordon --within 9s": "--for xid,watch |",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			streams, _, _, stderr := genericiooptions.NewTestIOStreams()
			cmd := NewCommand(streams)
			cmd.SetArgs(append(strings.Fields(line), "--kubeconfig", config))
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("nothing was refused")
			}
			text := stderr.String() + ErrorMessage(err)
			if !strings.Contains(text, want) ||
				strings.Count(text, "rbac print --for ") != strings.Count(text, "rbac print "+want) {
				t.Errorf("%q says\n%s\nwanted %q", line, text, want)
			}
		})
	}
}

// TestAnUndoerNamesAFeature: who may not revert is told roles that exist.
func TestAnUndoerNamesAFeature(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"": true} // that of the run
	for _, f := range rbac.Features() {
		known[f.Name] = true
	}
	named := 0
	for kind, undoer := range session.Undoers(nil) {
		needer, is := undoer.(fault.Needer)
		if !is {
			continue
		}
		if named++; !known[needer.Feature()] {
			t.Errorf("%s: `rbac print --for %s` is rejected", kind, needer.Feature())
		}
	}
	if named == 0 {
		t.Error("no undoer needs permissions, so this proves nothing")
	}
}

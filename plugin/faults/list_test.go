package faults

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// serveRuns returns an API server that has the records of runs, and returns a kubeconfig for it.
func serveRuns(t *testing.T, runs ...ledger.Run) string {
	t.Helper()
	client := fake.NewClientset(ledger.NamespaceObject(ledger.DefaultNamespace))
	store := ledger.New(client, ledger.DefaultNamespace)
	for _, run := range runs {
		if _, err := store.Create(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	records, err := client.CoreV1().ConfigMaps(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	records.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/configmaps"):
			_ = json.NewEncoder(w).Encode(records)
		case strings.HasSuffix(r.URL.Path, "/namespaces/"+ledger.DefaultNamespace):
			_ = json.NewEncoder(w).Encode(ledger.NamespaceObject(ledger.DefaultNamespace))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// TestListOfANamespace: with -n the list has the runs that change something there, and says so when there are none.
func TestListOfANamespace(t *testing.T) {
	t.Parallel()
	run := func(id string, target ledger.Target) ledger.Run {
		return ledger.Run{
			ID: id, Fault: "xid", Summary: "x", Phase: ledger.Proven,
			Steps: []ledger.Step{{ID: "1", Target: target, State: ledger.StateProven, Undo: ledger.Undo{Kind: "none"}}},
		}
	}
	config := serveRuns(t, run("xid-aaaaaa", ledger.Target{Kind: "Node", Name: "gpu-1"}),
		run("cuda-bbbbbb", ledger.Target{Kind: "Deployment", Namespace: "research", Name: "web"}),
		run("scenario-cccccc", ledger.Target{Kind: "Namespace", Name: "research"}))
	for namespace, want := range map[string]string{
		"": "xid-aaaaaa cuda-bbbbbb scenario-cccccc", "research": "cuda-bbbbbb scenario-cccccc",
		"foo": `no runs affect namespace "foo"`,
	} {
		streams, _, out, stderr := genericiooptions.NewTestIOStreams()
		connection := kube.NewConnection(streams)
		*connection.KubeConfig, *connection.Namespace = config, namespace
		cmd := NewListCommand(connection, streams)
		cmd.SetArgs(nil)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := out.String() + stderr.String()
		for _, id := range []string{"xid-aaaaaa", "cuda-bbbbbb", "scenario-cccccc"} {
			if strings.Contains(all, id) != strings.Contains(want, id) {
				t.Errorf("-n %q: %s\nwant %s", namespace, all, want)
			}
		}
		if namespace == "foo" && !strings.Contains(all, want) {
			t.Errorf("-n foo: %s", all)
		}
	}
}

// TestListOfAFleet: a fleet is one row, however many runs it has; programs and -o wide get each run.
func TestListOfAFleet(t *testing.T) {
	t.Parallel()
	const id = "fleet-7k3f9q"
	var runs []ledger.Run
	for i, node := range []string{"gpu-1", "gpu-2"} {
		runs = append(runs, ledger.Run{
			ID: ledger.FleetRun(id, i), Fleet: id, Fault: "xid", Summary: "x", Phase: ledger.Proven,
			Steps: []ledger.Step{{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: node}, State: ledger.StateProven,
				Undo: ledger.Undo{Kind: "none"},
			}},
		})
	}
	config := serveRuns(t, runs...)
	for output, want := range map[string][]string{
		"":     {id + "   Proven", "gpu-1,gpu-2"},
		"wide": {id + "-0", id + "-1"},
		"name": {"run/" + id + "-0", "run/" + id + "-1"},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		connection := kube.NewConnection(streams)
		*connection.KubeConfig = config
		cmd := NewListCommand(connection, streams)
		cmd.SetArgs([]string{"-o", output})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(out.String(), part) {
				t.Errorf("-o %q lacks %q:\n%s", output, part, out)
			}
		}
		if strings.Contains(out.String(), id+"-0") == (output == "") {
			t.Errorf("-o %q:\n%s", output, out)
		}
	}
}

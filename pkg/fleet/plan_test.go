package fleet

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const id = "fleet-7k3f9q"

func testPlan(nodes, size int) Plan {
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("gpu-%d", i))
	}
	return NewPlan(Header{ID: id, Client: "v1 abc", By: "alice", From: "laptop"}, names, size)
}

func testSettings() Settings {
	return Settings{
		Namespace: "gpu-fault", Summary: "XID 79 on GPU 0",
		Command: []string{"/kubectl-gpu_fault", "xid", "79", "--yes"},
		Image:   "r.example/i:gpu-fault-0123456789ab-amd64-0123456789ab", PullPolicy: corev1.PullIfNotPresent,
		PullSecrets: []string{"registry"}, Arch: "amd64", Pods: 2, Limit: 10 * time.Minute, Cleanup: time.Minute,
	}
}

// The Job and its plan are what a cluster's administrator sees, and what policies of the cluster decide about.
func TestObjects(t *testing.T) {
	t.Parallel()
	job, plan, err := Objects(testPlan(5, 2), testSettings())
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, object := range []any{job, plan} {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got = append(append(got, "---\n"...), text...)
	}
	golden := filepath.Join("testdata", "objects.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("objects.yaml (-want +got):\n%s", diff)
	}
}

// written returns the directory with a plan, as a pod mounts it.
func written(t *testing.T, plan Plan) string {
	t.Helper()
	cm, err := plan.configMap("gpu-fault")
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for name, data := range cm.Data {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// The pods together get each node exactly once, and derive the ID of their run from that of the fleet.
func TestEachNodeIsInOneShard(t *testing.T) {
	t.Parallel()
	plan := testPlan(5, 2)
	directory := written(t, plan)
	var nodes []string
	for i := range plan.Shards {
		shard, err := LoadShard(directory, i, "v1 abc")
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%s-%d", id, i); shard.Run() != want {
			t.Errorf("run %s, wanted %s", shard.Run(), want)
		}
		nodes = append(nodes, shard.Nodes...)
	}
	if diff := cmp.Diff(slices.Concat(plan.Shards...), nodes); diff != "" {
		t.Error(diff)
	}
}

// A pod injects nothing if its plan is not certainly the client's, or if it is of another build, whose flags may mean
// something else.
func TestLoadShardRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file, data, build string
		index             int
		want              string
	}{
		"another build":   {build: "v2 def", want: "the image contains a different build of kubectl gpu-fault (v2 def)"},
		"no such shard":   {index: 3, want: "has no shard 3"},
		"negative":        {index: -1, want: "has no shard -1"},
		"unknown field":   {file: headerFile, data: `{"more":1}`, want: "unknown field"},
		"another kind":    {file: headerFile, data: `{"kind":"Run"}`, want: `unexpected kind "Run" with apiVersion ""`},
		"two objects":     {file: headerFile, data: `{}{}`, want: "unexpected data after the plan"},
		"not JSON":        {file: headerFile, data: `-`, want: "read the fleet's plan"},
		"not a node":      {file: "shard-0", data: "gpu-1\n--yes", want: `invalid node name "--yes"`},
		"no node":         {file: "shard-0", data: "", want: `invalid node name ""`},
		"not a fleet":     {file: headerFile, data: strings.ReplaceAll(header(t), id, "xid-7k3f9q"), want: "invalid ID"},
		"a missing shard": {file: "shard-0", data: missing, want: "shard-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := written(t, testPlan(5, 2))
			path := filepath.Join(directory, test.file)
			var err error
			switch {
			case test.data == missing:
				err = os.Remove(path)
			case test.file != "":
				err = os.WriteFile(path, []byte(test.data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			build := test.build
			if build == "" {
				build = "v1 abc"
			}
			if _, err := LoadShard(directory, test.index, build); !says(err, test.want) {
				t.Errorf("%v, wanted %q", err, test.want)
			}
		})
	}
}

const missing = "missing"

func header(t *testing.T) string {
	t.Helper()
	cm, err := testPlan(5, 2).configMap("gpu-fault")
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data[headerFile]
}

// A fleet whose plan does not fit is refused before anything is created, with the number of its nodes.
func TestAPlanMustFit(t *testing.T) {
	t.Parallel()
	if err := testPlan(5000, 100).Check(); err != nil {
		t.Errorf("5000 nodes: %v", err)
	}
	if err := testPlan(150000, 100).Check(); err == nil || !strings.Contains(err.Error(), "select fewer nodes") {
		t.Errorf("150000 nodes: %v", err)
	}
}

// What a pod reads is written by a client, but the ledger namespace has other writers: no plan makes the program panic,
// and no name that is not a node's gets through.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"gpufault.dev/v1alpha1","kind":"FleetPlan","id":"fleet-7k3f9q","client":"v1","shards":1}`))
	f.Add([]byte("gpu-1\ngpu-2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseHeader(data)
		nodes, err := parseNodes(data)
		if err != nil {
			return
		}
		for _, node := range nodes {
			if node == "" || strings.ContainsAny(node, " \n-") && node[0] == '-' {
				t.Errorf("node %q", node)
			}
		}
	})
}

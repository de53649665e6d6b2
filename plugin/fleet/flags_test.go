package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// command returns the command `tool break` with some flags of each type, those of pods, and those of fleets.
func command(f *Flags, pods *podflags.Flags) *cobra.Command {
	root := &cobra.Command{Use: "tool"}
	root.PersistentFlags().String("token", "", "")
	cmd := &cobra.Command{Use: "break", Run: func(*cobra.Command, []string) {}}
	flags := cmd.Flags()
	flags.StringSlice("names", nil, "")
	flags.String("message", "", "")
	flags.Bool("yes", false, "")
	flags.String("selector", "", "")
	flags.Int("count", 1, "")
	pods.AddFlags(cmd)
	f.AddFlags(flags)
	root.AddCommand(cmd)
	return cmd
}

// The pods run the same command with the same flags, but for those about the client: a credential of the client must
// never get into a Job that others can read.
func TestThePodsRunTheSameCommand(t *testing.T) {
	t.Parallel()
	f, pods := New(), podflags.New()
	cmd := command(&f, &pods)
	if err := cmd.Parent().PersistentFlags().Set("token", "secret"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags([]string{
		"--in-cluster", "--names", "a,b", "--message", "x y", "--yes", "--selector", "a=b", "--timeout", "1m",
		"--image-pull-secret", "one", "--image-pull-secret", "two",
	}); err != nil {
		t.Fatal(err)
	}
	nodes, err := f.Prepare(cmd, []string{"79"}, []string{"gpu-1"})
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	want := []string{
		"break", "--image-pull-secret=one", "--image-pull-secret=two", "--message=x y", "--names=a", "--names=b",
		"--timeout=1m0s", "79",
	}
	if diff := cmp.Diff(want, f.command); diff != "" {
		t.Error(diff)
	}
}

// Flags that make no sense are refused with what to do.
func TestValidate(t *testing.T) {
	t.Parallel()
	const with = "r.example/i:gpu-fault-0123456789ab-amd64-0123456789ab"
	for name, test := range map[string]struct {
		flags Flags
		image string
		want  string
	}{
		"not a fleet":    {New(), "busybox", ""},
		"in cluster":     {Flags{InCluster: true, NodesPerPod: 1}, with, ""},
		"no plugin":      {Flags{InCluster: true, NodesPerPod: 1}, "busybox", "image push REPOSITORY --with-plugin"},
		"no nodes":       {Flags{NodesPerPod: 0}, with, "must be 1 to 500"},
		"too many nodes": {Flags{NodesPerPod: 501}, with, "must be 1 to 500"},
		"a fleet in a pod": {
			Flags{InCluster: true, NodesPerPod: 1, directory: "/fleet"}, with, "cannot be used together",
		},
		"the helper's only": {Flags{InCluster: true, NodesPerPod: 1}, "r/i:gpu-fault-0123456789ab", "--with-plugin"},
	} {
		err := test.flags.Validate(&podflags.Flags{Image: test.image})
		if !says(err, test.want) {
			t.Errorf("%s: %v, wanted %q", name, err, test.want)
		}
	}
}

// In a pod, the nodes are those of the shard that the Job's index selects, and none of the command line.
func TestPrepareInAPod(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{
		"fleet.json": `{"apiVersion":"gpufault.dev/v1alpha1","kind":"FleetPlan","id":"fleet-7k3f9q","client":"` +
			clientBuild() + `","shards":2}`,
		"shard-1": "gpu-3\ngpu-4",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, pods := New(), podflags.New()
	cmd := command(&f, &pods)
	if err := cmd.ParseFlags([]string{"--in-cluster-shard", directory}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Prepare(cmd, nil, nil); err == nil || !strings.Contains(err.Error(), "JOB_COMPLETION_INDEX") {
		t.Errorf("outside a Job: %v", err)
	}
	t.Setenv("JOB_COMPLETION_INDEX", "1")
	if _, err := f.Prepare(cmd, nil, []string{"gpu-1"}); err == nil {
		t.Error("node names are accepted beside the shard")
	}
	nodes, err := f.Prepare(cmd, nil, nil)
	if diff := cmp.Diff([]string{"gpu-3", "gpu-4"}, nodes); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

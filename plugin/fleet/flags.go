// Package fleet implements --in-cluster, which makes a command inject its fault from inside the cluster.
package fleet

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Flags contains --in-cluster, --nodes-per-pod, and the hidden flag that is set when pods run the client's command.
type Flags struct {
	InCluster   bool
	NodesPerPod int

	directory string       // directory of the plan, if running in a pod
	shard     *fleet.Shard // set if running in a pod
	command   []string     // the command that the pods run, without the flags that all fleets have
}

// New returns the default values.
func New() Flags { return Flags{NodesPerPod: 100} }

const (
	inCluster   = "in-cluster"
	nodesPerPod = "nodes-per-pod"
	shardFlag   = "in-cluster-shard"
)

// AddFlags registers the flags.
func (f *Flags) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.InCluster, inCluster, false,
		"Inject from pods in the cluster, for many nodes; requires an --image from kubectl gpu-fault image push --with-plugin")
	flags.IntVar(&f.NodesPerPod, nodesPerPod, f.NodesPerPod, "With --in-cluster, number of nodes per pod, 1 to 500")
	flags.StringVar(&f.directory, shardFlag, "", "Directory with the fleet's plan")
	_ = flags.MarkHidden(shardFlag)
}

// mostPerPod keeps the record of a pod's run below the size limit of a ConfigMap.
const mostPerPod = 500

// Validate checks the flags as far as this is possible without a cluster.
func (f *Flags) Validate(pods *podflags.Flags) error {
	switch {
	case f.NodesPerPod < 1 || f.NodesPerPod > mostPerPod:
		return fmt.Errorf("invalid value %d for --%s: must be 1 to %d", f.NodesPerPod, nodesPerPod, mostPerPod)
	case f.InCluster && f.InShard():
		return fmt.Errorf("--%s and --%s cannot be used together", inCluster, shardFlag)
	case !f.InCluster:
		return nil
	case image.PluginIn(pods.Image) == "":
		return fmt.Errorf("--%s requires --image with an image that contains the plugin and has the default tag; create "+
			"one with: kubectl gpu-fault image push REPOSITORY --with-plugin", inCluster)
	}
	return nil
}

// InShard reports whether this program runs in a pod of a fleet.
func (f *Flags) InShard() bool { return f.directory != "" }

// Prepare returns the nodes on the command line or, in a pod of a fleet, those of its shard. With --in-cluster, it
// keeps the command line for the pods: the words of the command, and all flags except those that concern the client.
func (f *Flags) Prepare(cmd *cobra.Command, words, nodes []string) ([]string, error) {
	if f.InCluster {
		f.command = append(path(cmd), append(arguments(cmd.LocalNonPersistentFlags()), words...)...)
	}
	if !f.InShard() {
		return nodes, nil
	}
	if len(nodes) > 0 {
		return nil, fmt.Errorf("node names and --%s cannot be used together", shardFlag)
	}
	index, err := strconv.Atoi(os.Getenv("JOB_COMPLETION_INDEX"))
	if err != nil {
		return nil, errors.New("JOB_COMPLETION_INDEX is not set: the Jobs created by --in-cluster set it")
	}
	shard, err := fleet.LoadShard(f.directory, index, clientBuild())
	if err != nil {
		return nil, err
	}
	f.shard = &shard
	return shard.Nodes, nil
}

// clientBuild identifies the build of this program.
func clientBuild() string {
	info := build.Get()
	return info.Version + " " + info.Commit
}

// path returns the words of a command below the root command.
func path(cmd *cobra.Command) []string {
	var words []string
	for ; cmd.HasParent(); cmd = cmd.Parent() {
		words = append([]string{cmd.Name()}, words...)
	}
	return words
}

// ofClient are the flags that are not passed to the pods. They select the nodes, or control the client's output and
// confirmation.
var ofClient = []string{"selector", "pod", "yes", "output", "no-headers", "dry-run", inCluster, nodesPerPod, shardFlag}

// arguments returns the flags that the user or the environment has set.
func arguments(flags *pflag.FlagSet) []string {
	var all []string
	flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed || slices.Contains(ofClient, flag.Name) {
			return
		}
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			all = append(all, "--"+flag.Name+"="+value)
		}
	})
	return all
}

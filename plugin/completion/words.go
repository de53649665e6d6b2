package completion

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// patience limits the time that the shell waits for completions. If an error occurs, no completions are returned.
const patience = 3 * time.Second

const noFiles = cobra.ShellCompDirectiveNoFileComp

// Nodes completes node names, with the GPU model as the description.
func Nodes(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, ctx, cancel, ok := connect(cmd, connection)
		if !ok {
			return nil, noFiles
		}
		defer cancel()
		nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, noFiles
		}
		var words []cobra.Completion
		for _, node := range nodes.Items {
			if strings.HasPrefix(node.Name, prefix) && !slices.Contains(args, node.Name) {
				words = append(words, cobra.CompletionWithDesc(node.Name, gpus(node)))
			}
		}
		return words, noFiles
	}
}

// DaemonSets completes DaemonSets as NAMESPACE/NAME.
func DaemonSets(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, ctx, cancel, ok := connect(cmd, connection)
		if !ok {
			return nil, noFiles
		}
		defer cancel()
		sets, err := cluster.Client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, noFiles
		}
		var words []cobra.Completion
		for _, ds := range sets.Items {
			if word := ds.Namespace + "/" + ds.Name; strings.HasPrefix(word, prefix) {
				words = append(words, word)
			}
		}
		return words, noFiles
	}
}

// OneNode completes a single node name.
func OneNode(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return Nodes(connection)(cmd, args, prefix)
	}
}

func gpus(node corev1.Node) string {
	count := node.Status.Allocatable["nvidia.com/gpu"]
	model := node.Labels["nvidia.com/gpu.product"]
	if count.IsZero() && model == "" {
		return "no GPU"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", count.String(), model))
}

// Pods completes the names of running pods in the namespace.
func Pods(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, ctx, cancel, ok := connect(cmd, connection)
		if !ok {
			return nil, noFiles
		}
		defer cancel()
		pods, err := cluster.Client.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, noFiles
		}
		var words []cobra.Completion
		for _, pod := range pods.Items {
			if strings.HasPrefix(pod.Name, prefix) {
				words = append(words, cobra.CompletionWithDesc(pod.Name, "on "+pod.Spec.NodeName))
			}
		}
		return words, noFiles
	}
}

// Codes completes XIDs, with their names as descriptions. The prefix may contain several XIDs, separated by commas.
func Codes(prefix string) []cobra.Completion {
	before, last := "", prefix
	if i := strings.LastIndex(prefix, ","); i >= 0 {
		before, last = prefix[:i+1], prefix[i+1:]
	}
	var words []cobra.Completion
	for _, code := range xid.All() {
		if number := fmt.Sprint(code.Number); strings.HasPrefix(number, last) {
			words = append(words, cobra.CompletionWithDesc(before+number, code.Description))
		}
	}
	return words
}

// Runs completes the IDs of runs that are not closed.
func Runs(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, ctx, cancel, ok := connect(cmd, connection)
		if !ok {
			return nil, noFiles
		}
		defer cancel()
		runs, err := ledger.New(cluster.Client, connection.LedgerNamespace).List(ctx, ledger.Active)
		if err != nil {
			return nil, noFiles
		}
		var words []cobra.Completion
		for _, run := range fleet.Fold(runs.Runs) {
			if strings.HasPrefix(run.ID, prefix) && !slices.Contains(args, run.ID) {
				words = append(words, cobra.CompletionWithDesc(run.ID, run.Summary))
			}
		}
		return words, noFiles
	}
}

// Register adds completion to the flags --namespace and --context.
func Register(root *cobra.Command, connection *kube.Connection) {
	_ = root.RegisterFlagCompletionFunc("namespace",
		func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			cluster, ctx, cancel, ok := connect(cmd, connection)
			if !ok {
				return nil, noFiles
			}
			defer cancel()
			list, err := cluster.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, noFiles
			}
			var words []cobra.Completion
			for _, ns := range list.Items {
				if strings.HasPrefix(ns.Name, prefix) {
					words = append(words, ns.Name)
				}
			}
			return words, noFiles
		})
	_ = root.RegisterFlagCompletionFunc("context",
		func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
			config, err := connection.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil, noFiles
			}
			var words []cobra.Completion
			for name := range config.Contexts {
				if strings.HasPrefix(name, prefix) {
					words = append(words, name)
				}
			}
			return words, noFiles
		})
}

func connect(
	cmd *cobra.Command, connection *kube.Connection,
) (*kube.Cluster, context.Context, context.CancelFunc, bool) {
	cluster, err := connection.Cluster()
	if err != nil {
		return nil, nil, nil, false
	}
	parent := cmd.Context()
	if parent == nil { // cobra sometimes completes without the context from ExecuteContext
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, patience)
	return cluster, ctx, cancel, true
}

package cuda

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// completionTimeout limits the time that the shell waits for completions. If an error occurs, no completions are
// returned.
const completionTimeout = 3 * time.Second

const noFiles = cobra.ShellCompDirectiveNoFileComp

// kinds returns the workload types that completion offers. Any other type with pod templates works, too.
func kinds() []string {
	return []string{
		"deployment", "statefulset", "daemonset", "job", "cronjob", "jobset", "leaderworkerset", "pytorchjob", "mpijob",
		"raycluster", "dynamographdeployment",
	}
}

// completeWorkload completes TYPE/, and then the names of the objects of that type in the namespace.
func completeWorkload(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		kind, _, named := strings.Cut(prefix, "/")
		if !named {
			var words []cobra.Completion
			for _, k := range kinds() {
				if strings.HasPrefix(k, prefix) {
					words = append(words, k+"/")
				}
			}
			return words, noFiles | cobra.ShellCompDirectiveNoSpace
		}
		cluster, found, ctx, cancel := connect(cmd, connection)
		if found == nil {
			return nil, noFiles
		}
		defer cancel()
		var words []cobra.Completion
		for _, name := range names(ctx, found, cluster.Namespace, kind) {
			if word := kind + "/" + name; strings.HasPrefix(word, prefix) {
				words = append(words, word)
			}
		}
		return words, noFiles
	}
}

// names returns the names of a kind's objects.
func names(ctx context.Context, cluster *cudashim.Cluster, namespace, kind string) []string {
	resource, err := cluster.Mapper.ResourceFor(schema.ParseGroupResource(kind).WithVersion(""))
	if err != nil {
		return nil
	}
	list, err := cluster.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var all []string
	for _, item := range list.Items {
		all = append(all, item.GetName())
	}
	return all
}

// completeRuns completes the IDs of CUDA runs that are not closed.
func completeRuns(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, found, ctx, cancel := connect(cmd, connection)
		if found == nil || len(args) > 0 {
			return nil, noFiles
		}
		defer cancel()
		listing, err := ledger.New(cluster.Client, connection.LedgerNamespace).List(ctx, ledger.Active)
		if err != nil {
			return nil, noFiles
		}
		var words []cobra.Completion
		for _, run := range listing.Runs {
			if run.Fault == "cuda" && strings.HasPrefix(run.ID, prefix) {
				words = append(words, cobra.CompletionWithDesc(run.ID, run.Summary))
			}
		}
		return words, noFiles
	}
}

func completeRunsAndWorkloads(connection *kube.Connection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		runs, _ := completeRuns(connection)(cmd, args, prefix)
		workloads, directive := completeWorkload(connection)(cmd, args, prefix)
		if len(runs) > 0 {
			directive = noFiles
		}
		return append(runs, workloads...), directive
	}
}

// completeContainer completes the containers of the workload given as the argument.
func completeContainer(connection *kube.Connection) cobra.CompletionFunc {
	return completeFrom(connection, func(t cudashim.Template) (words []string) {
		for _, c := range t.Containers {
			words = append(words, c.Name)
		}
		return words
	})
}

// completeService completes the names of the workload's pod templates.
func completeService(connection *kube.Connection) cobra.CompletionFunc {
	return completeFrom(connection, func(t cudashim.Template) []string {
		if t.Name == "" {
			return nil
		}
		return []string{strings.TrimPrefix(t.Name, "services.")}
	})
}

func completeFrom(connection *kube.Connection, words func(cudashim.Template) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, found, ctx, cancel := connect(cmd, connection)
		if found == nil || len(args) == 0 {
			return nil, noFiles
		}
		defer cancel()
		w, err := found.Find(ctx, cluster.Namespace, args[0])
		if err != nil {
			return nil, noFiles
		}
		var all []cobra.Completion
		for _, t := range w.Templates {
			for _, word := range words(t) {
				if strings.HasPrefix(word, prefix) && !slices.Contains(all, word) {
					all = append(all, word)
				}
			}
		}
		return all, noFiles
	}
}

func connect(
	cmd *cobra.Command, connection *kube.Connection,
) (*kube.Cluster, *cudashim.Cluster, context.Context, context.CancelFunc) {
	cluster, err := connection.Cluster()
	if err != nil {
		return nil, nil, nil, nil
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return nil, nil, nil, nil
	}
	parent := cmd.Context()
	if parent == nil { // cobra sometimes completes without the context from ExecuteContext
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionTimeout)
	return cluster, found, ctx, cancel
}

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/gpureset"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// resetting holds the arguments and flags of `device reset`.
type resetting struct {
	nodefault.Flags
	gpu   string
	gpus  gpus.Choices
	allow bool
}

func newResetCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &resetting{Flags: nodefault.New()}
	cmd := &cobra.Command{
		Use:   "reset NODE --gpu GPU --allow-reset",
		Short: "Reset an unused GPU with the node's nvidia-smi; this cannot be undone",
		Long: `Reset a GPU on a node with nvidia-smi --gpu-reset. A reset ends the error state of the GPU, such as a pending row remapping, and erases
the GPU's memory.

The GPU is reset only if the kubelet has not allocated it to a pod, no process on the node has it open, and it has no MIG instances. The
device plugin and DCGM also keep GPUs open, so stop them first. nvidia-smi itself refuses the reset if the driver must reset several GPUs together, as
with NVLink.`,
		Example: `  # Reset GPU 1 of gpu-1
  kubectl gpu-fault device reset gpu-1 --gpu 1 --allow-reset`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Nodes.Names = args
			if err := f.validate(); err != nil {
				return err
			}
			return f.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completion.Nodes(connection),
	}
	f.AddFlags(cmd)
	flags := cmd.Flags()
	for _, name := range []string{"selector", "parallel", "ttl"} { // a reset applies to one node and is permanent
		_ = flags.MarkHidden(name)
	}
	flags.StringVar(&f.gpu, "gpu", "", "GPU: its index in nvidia-smi, its UUID (GPU-...) or its PCI address (0000:17:00)")
	flags.BoolVar(&f.allow, "allow-reset", false, "Allow the reset, which cannot be undone")
	_ = cmd.RegisterFlagCompletionFunc("gpu",
		cobra.FixedCompletions([]string{"0", "1"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// validate checks everything that does not require a cluster.
func (f *resetting) validate() (err error) {
	switch {
	case f.gpu == "":
		return errors.New("no GPU is selected: specify --gpu, such as --gpu 1")
	case f.Nodes.Selector != "":
		return errors.New("-l cannot be used with device reset: specify one node")
	case !f.allow:
		return errors.New("a reset erases the GPU's memory and cannot be undone: specify --allow-reset")
	}
	if f.gpus, err = gpus.Parse(f.gpu); err != nil {
		return err
	}
	if len(f.gpus) > 1 || f.gpus.AtMost() != 1 {
		return fmt.Errorf("--gpu %s selects several GPUs: reset them one at a time", f.gpu)
	}
	return f.Validate()
}

func (f *resetting) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	return f.Run(ctx, connection, streams, nodefault.Fault{
		Name: "device", Summary: "Reset: " + f.gpus.String(), Result: "reset",
		Question: "Reset " + f.gpus.String() + " of",
		Needs:    Permissions(connection.LedgerNamespace),
		Describe: func(say func(string, ...any)) {
			say("What: the node's nvidia-smi resets the GPU, if it is not in use. The GPU's memory and error state are cleared.")
			say("Undo: none. A reset cannot be undone.")
		},
		Changes: func(
			_ context.Context, cluster *kube.Cluster, nodes []string, _ *corev1.Pod,
		) (changes []fault.Change, _ error) {
			in := gpureset.Injection{
				Start: session.StartShortPod[gpureset.Pod](cluster, connection.LedgerNamespace, f.Pods),
			}
			for _, node := range nodes {
				in.Choose = func(ctx context.Context, info api.Info, devices api.Devices) ([]string, error) {
					return f.choose(ctx, cluster, node, info, devices)
				}
				changes = append(changes, in.Change(node, "reset "+f.gpus.String()))
			}
			return changes, nil
		},
	})
}

// choose returns the PCI address of the GPU, or an error if a pod holds the GPU.
func (f *resetting) choose(
	ctx context.Context, cluster *kube.Cluster, node string, info api.Info, devices api.Devices,
) (chosen []string, err error) {
	picked, err := f.gpus.Pick(info, gpus.Pod{})
	if err != nil {
		return nil, err
	}
	all, err := gpus.Of(info)
	if err != nil {
		return nil, err
	}
	for _, g := range picked {
		index := slices.Index(all, g)
		if index < 0 {
			return nil, fmt.Errorf("the node's driver has no GPU %s", g.PCI)
		}
		for _, r := range devices.Resources {
			for id, uid := range r.Pods {
				if at := indexOf(id, info.GPUs); at == nil || *at != index {
					continue
				}
				pod, err := nameOfPod(ctx, cluster, node, uid)
				if err != nil {
					return nil, err
				}
				if pod != "" {
					return nil, fmt.Errorf("%s holds %s: delete the pod first", pod, f.gpus)
				}
			}
		}
		chosen = append(chosen, info.GPUs[index].PCI)
	}
	return chosen, nil
}

// nameOfPod returns the name of a pod on a node. The name is empty if the pod no longer exists, which is possible
// because the kubelet does not update its checkpoint immediately.
func nameOfPod(ctx context.Context, cluster *kube.Cluster, node, uid string) (string, error) {
	list, err := cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return "", fmt.Errorf("find the pod with UID %s, which holds the GPU: %w", uid, err)
	}
	for _, p := range list.Items {
		if string(p.UID) == uid {
			return "pod " + p.Namespace + "/" + p.Name, nil
		}
	}
	return "", nil
}

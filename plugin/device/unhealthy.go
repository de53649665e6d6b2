package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/dra"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// failing holds the arguments and flags of `device unhealthy`.
type failing struct {
	nodefault.Flags
	gpu string
	selection
}

func newFailing() *failing { return &failing{Flags: nodefault.New()} }

func newUnhealthyCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := newFailing()
	cmd := &cobra.Command{
		Use:   "unhealthy (NODE... | -l SELECTOR | --pod POD) (--gpu GPU | --device ID)",
		Short: "Make the kubelet consider devices unhealthy, until the run is reverted or expires",
		Long: `Make the kubelet of a node consider devices unhealthy, as if the device plugin had reported them, and verify the result in the node's status.

The node then has fewer allocatable devices. Pods that use an unhealthy device keep running, and their status shows the device as unhealthy if
the kubelet supports this. The device plugin keeps allocating the other devices. Nothing on the node is changed or restarted.

A process on the node reports the devices to the kubelet in addition to the device plugin, until the TTL expires. The fault ends early if
this process is killed, or if the kubelet or the device plugin restarts. This does not test whether the device plugin itself detects faults.`,
		Example: `  # Make GPU 1 of gpu-1 unhealthy for ten minutes
  kubectl gpu-fault device unhealthy gpu-1 --gpu 1 --ttl 10m

  # Make the GPUs of a pod unhealthy
  kubectl gpu-fault device unhealthy --pod trainer-0 -n research

  # Make a device of another vendor unhealthy; device list prints the IDs
  kubectl gpu-fault device unhealthy gpu-7 --resource amd.com/gpu --device 0000:c1:00.0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := f.Fleet.Prepare(cmd, nil, args)
			if err != nil {
				return err
			}
			f.Nodes.Names = nodes
			if err := f.validate(); err != nil {
				return err
			}
			return f.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completion.Nodes(connection),
	}
	f.AddFlags(cmd)
	flags := cmd.Flags()
	f.Fleet.AddFlags(flags)
	flags.Lookup("ttl").Usage = "Time after which the node ends the fault unless reverted earlier, 10s to 24h"
	flags.StringVar(&f.Nodes.Pod, "pod", "", "Select the node and the devices of this pod, in the namespace set with -n")
	flags.StringVar(&f.gpu, "gpu", "",
		"GPU: its index in nvidia-smi, its UUID (GPU-...), its PCI address (0000:17:00), several of these (0,1), or all; with --pod, selects among the pod's GPUs")
	flags.StringSliceVar(&f.devices, "device", nil,
		"ID of a device, as printed by device list; may be repeated")
	flags.StringVar(&f.resource, "resource", "",
		"Resource of the devices (default: nvidia.com/gpu, or the only resource on the node)")
	_ = cmd.RegisterFlagCompletionFunc("gpu",
		cobra.FixedCompletions([]string{"0", "all"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("pod", completion.Pods(connection))
	return cmd
}

// validate checks everything that does not require a cluster.
func (f *failing) validate() (err error) {
	switch ways := f.gpu != "" || len(f.devices) > 0 || f.Nodes.Pod != ""; {
	case !ways:
		return errors.New("no device is selected: specify --gpu, --device or --pod (`kubectl gpu-fault device list NODE` lists the devices)")
	case f.gpu != "" && len(f.devices) > 0:
		return errors.New("--gpu and --device cannot be used together")
	case slices.ContainsFunc(f.devices, func(id string) bool { return strings.TrimSpace(id) == "" }):
		return errors.New("--device contains an empty ID: is a variable unset?")
	case f.TTL.TTL == 0:
		return errors.New("--ttl 0 is not supported: the process on the node must know when to end the fault")
	}
	if f.gpu != "" {
		if f.gpus, err = gpus.Parse(f.gpu); err != nil {
			return err
		}
	}
	return f.Validate()
}

func (f *failing) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	return f.Run(ctx, connection, streams, nodefault.Fault{
		Name: "device", Summary: f.summary(), Result: "unhealthy", Question: "Make " + f.String() + " unhealthy on",
		Describe: f.describe, Needs: Permissions(connection.LedgerNamespace),
		Changes: func(
			_ context.Context, cluster *kube.Cluster, nodes []string, pod *corev1.Pod,
		) (changes []fault.Change, _ error) {
			of := f.selection
			if pod != nil {
				of.pod = gpus.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
			}
			injection := f.injection(connection, cluster, of)
			for _, name := range nodes {
				changes = append(changes, injection.Change(name, f.action()))
			}
			return changes, nil
		},
	})
}

func (f *failing) injection(connection *kube.Connection, cluster *kube.Cluster, of selection) *devicehealth.Injection {
	return &devicehealth.Injection{
		Client: cluster.Client, Choose: of.choose,
		Start: session.StartShortPod[devicehealth.Pod](cluster, connection.LedgerNamespace, f.Pods),
	}
}

func (f *failing) action() string { return "make " + f.String() + " unhealthy" }

// Unhealthy describes the fault of `device unhealthy NODE --gpu GPU`.
type Unhealthy struct {
	Node, GPU string
	Pod       gpus.Pod // if set, GPU selects among the GPUs that this pod holds
	Pods      podflags.Flags
}

// Change returns the change that the command would make, for use in another command's plan, which must have a TTL. It
// returns an error if the GPU is invalid.
func (u Unhealthy) Change(connection *kube.Connection, cluster *kube.Cluster) (fault.Change, error) {
	f := newFailing()
	f.gpu, f.pod, f.Pods, f.Nodes.Names = u.GPU, u.Pod, u.Pods, []string{u.Node}
	if err := f.validate(); err != nil {
		return fault.Change{}, err
	}
	return f.injection(connection, cluster, f.selection).Change(u.Node, f.action()), nil
}

// CheckPlugin returns an error if a DRA driver publishes the GPUs of a node, and no device plugin registers them.
func CheckPlugin(ctx context.Context, client kubernetes.Interface, node string) error {
	now, err := fault.Allocatable(ctx, client, node)
	if err != nil {
		return err
	}
	for resource, n := range now {
		if n > 0 && strings.HasPrefix(string(resource), "nvidia.com/") {
			return nil
		}
	}
	const driver = "gpu.nvidia.com"
	devices, err := dra.PublishedOn(ctx, client, node)
	if err != nil || !slices.ContainsFunc(devices, func(d dra.Device) bool { return d.Driver == driver }) {
		return nil // continue: the node itself reports the registered devices
	}
	return fmt.Errorf("no device plugin registers the GPUs of node %s: the DRA driver %s publishes them; leave out the device layer, "+
		"and use `kubectl gpu-fault device taint`", node, driver)
}

// Permissions returns the permissions for making devices unhealthy, in addition to those for every fault.
func Permissions(ledgerNamespace string) []fault.Permission {
	return append(fault.DebugPodPermissions(ledgerNamespace),
		// Required to read the health of devices from pod statuses.
		fault.Permission{Verb: "list", Resource: "pods", Optional: true})
}

func (f *failing) summary() string { return "Unhealthy: " + f.String() }

// String returns the selected devices, such as "GPU 1".
func (f *failing) String() string {
	var text string
	switch {
	case len(f.devices) == 1:
		text = "device " + f.devices[0]
	case len(f.devices) > 1:
		text = "devices " + strings.Join(f.devices, ", ")
	case len(f.gpus) > 0:
		text = f.gpus.String()
	default:
		return "the devices of pod " + f.Nodes.Pod
	}
	if f.resource != "" {
		text += " (" + f.resource + ")"
	}
	return text
}

// describe describes the planned change and how it ends.
func (f *failing) describe(say func(string, ...any)) {
	say("What: the kubelet considers the devices unhealthy. The node has fewer allocatable devices; running pods are not stopped.")
	say("How: a privileged pod%s starts a process that reports the devices to the kubelet as unhealthy. Nothing is "+
		"changed or restarted.",
		f.Pods.OtherImage())
	say("Duration: %s. Undo: `kubectl gpu-fault revert RUN`. The fault also ends if the kubelet or the device plugin restarts.",
		f.TTL.String())
}

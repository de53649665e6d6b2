// Package xid implements `kubectl gpu-fault xid`, which writes XID lines to the kernel logs of nodes, exactly as the
// NVIDIA driver prints them.
package xid

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/realxid"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns the `xid` command with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := newFlags()
	cmd := &cobra.Command{
		Use:   "xid CODE[,CODE...] (NODE... | -l SELECTOR | --pod POD)",
		Short: "Write XID lines to the kernel logs of nodes",
		Long: `Write XID lines to the kernel logs of nodes, exactly as the NVIDIA driver prints them, and verify each line by reading it back.

CODE is an XID (79), an NVSwitch error (sxid:20034), or fallen-off-bus (the record of a GPU that is missing when the driver starts).
Detectors on the node treat the line as real, and may cordon, drain and reboot the node. The reaction of each detector is shown before
anything is written.

A privileged pod writes the line and is then deleted. The line remains: a kernel log cannot be reverted.

With --layers, one run also injects the fault where Kubernetes and programs see it: the kubelet considers the GPU unhealthy, as with
` + "`device unhealthy`" + `; the node's device plugin gets the XID from NVML; and the programs in a workload get the XID's errors from CUDA and
NVML, as with ` + "`cuda inject`" + `. Each layer is verified. If one fails, the others are undone, and no line is written unless it is the kernel
log layer that fails. The layers are injected one after another. Reverting the run undoes everything except the line.

The nvml layer replaces the pod of the device plugin, or of --daemonset, with a copy that loads the shim. Only the pod on this node restarts. When
the copy terminates, because the TTL expires or for any other reason, the DaemonSet creates its own pod again. The dcgm layer injects the XID into
DCGM's host engine on the node, with dcgmi in the engine's pod.

With --real, the driver itself reports XID 13, 31 or 43, because a program causes an error on a free GPU on the node: it stores to a misaligned
address (13) or to an address that is not mapped (31), or its assertion fails (43). All readers, including NVML and DCGM, see this XID. Only
the program's CUDA context is lost. The program runs in a pod in the namespace set with -n.

With --in-cluster, the pods of a Job in the cluster inject the fault; each pod handles some of the nodes. The pods run this command with the permissions of a
service account, and each creates its own run. Ctrl-C and ` + "`revert`" + ` stop them.`,
		Example: `  # Make GPU 0 of gpu-1 fall off the bus
  kubectl gpu-fault xid 79 gpu-1

  # Write a double-bit ECC error with its accompanying records: row remapping, channels of the process, recovery action
  kubectl gpu-fault xid 48 gpu-1 --gpu 1 --cascade

  # Select the GPU and the process of a pod
  kubectl gpu-fault xid 31 --pod trainer-0 -n research

  # Select nodes by label, four at a time, without confirmation
  kubectl gpu-fault xid 63 -l nvidia.com/gpu.product=NVIDIA-H200 --parallel 4 --yes

  # Write the line with the kernel facility, for readers that check the facility
  kubectl gpu-fault xid 79 gpu-1 --via kmod

  # Inject the same fault in several layers: kernel log, kubelet, and CUDA and NVML in a workload
  kubectl gpu-fault xid 79 gpu-1 --layers kernel,device,cuda --workload deployment/vllm

  # Make the node's device plugin detect the fault itself, through NVML
  kubectl gpu-fault xid 48 gpu-1 --gpu 1 --layers kernel,nvml

  # Make the driver itself report the XID: a pod causes an error on a free GPU on the node
  kubectl gpu-fault xid 31 gpu-1 --real

  # Write a line on a node without a GPU
  kubectl gpu-fault xid 79 worker-3 --gpu 0000:17:00

  # Write to thousands of nodes, from pods in the cluster
  kubectl gpu-fault xid 79 -l nvidia.com/gpu.present=true --in-cluster \
      --image registry.example.com/tools/gpu-fault-node:gpu-fault-0123456789ab-amd64-0123456789ab

  # Only print what would be created
  kubectl gpu-fault xid 79 gpu-1 --dry-run=client`,
		Args: usage.MinArgs(1, "a code and a node", "kubectl gpu-fault xid 79 gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkReal(cmd); err != nil {
				return err
			}
			if f.real.on {
				x, err := f.toReal(args)
				if err != nil {
					return err
				}
				return x.run(cmd.Context(), connection, streams)
			}
			nodes, err := f.Fleet.Prepare(cmd, args[:1], args[1:])
			if err != nil {
				return err
			}
			o, err := f.toOptions(append(args[:1:1], nodes...))
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return completion.Codes(prefix), cobra.ShellCompDirectiveNoFileComp
			}
			return completion.Nodes(connection)(cmd, args[1:], prefix)
		},
	}
	f.add(cmd, connection)
	cmd.AddCommand(newListCommand(streams), newExplainCommand(streams), newReplayCommand(connection, streams))
	return cmd
}

// flags contains the flags of the command line.
type flags struct {
	inject // flags shared by all commands that write

	cascade  bool
	count    int
	interval time.Duration
	process  string
	message  string
	driver   string
	mig      string
	swtch    int
	link     int
	seed     uint64
	layers   layering
	real     realFlags
}

func newFlags() *flags {
	return &flags{
		inject: newInject(), count: 1, link: -1, layers: layering{layers: []string{layerKernel}},
		real: realFlags{image: realxid.DefaultImage},
	}
}

func (f *flags) add(cmd *cobra.Command, connection *kube.Connection) {
	f.inject.add(cmd, connection)
	flags := cmd.Flags()
	f.Fleet.AddFlags(flags)
	flags.BoolVar(&f.cascade, "cascade", f.cascade,
		"Also write the records that accompany the XID in a real fault, in order and with their delays")
	flags.IntVar(&f.count, "count", f.count, "Number of times to write the lines")
	flags.DurationVar(&f.interval, "interval", f.interval, "With --count, delay between two writes")
	flags.StringVar(&f.process, "process", f.process,
		"PID,NAME of the process in the line, or none (default with --pod: the pod's process)")
	flags.StringVar(&f.message, "message", f.message,
		"Message after the code, instead of the driver's message; required for codes that are not in the catalog")
	flags.StringVar(&f.driver, "driver", f.driver,
		"Driver branch whose line format is used, such as 535 or 580 (default: the node's driver, or 580)")
	flags.StringVar(&f.mig, "mig", f.mig,
		"MIG instance in the line: GPU instance, or GPU instance/compute instance, such as 5 or 5/0")
	flags.IntVar(&f.swtch, "switch", f.swtch, "Number of the NVSwitch, for sxid codes")
	flags.IntVar(&f.link, "link", f.link, "Number of the NVLink, for sxid codes (default: the number in the catalog's line)")
	// pflag omits a default of 0 from the help. The real default, -1, means "not set".
	flags.Lookup("link").DefValue = "0"
	flags.StringSliceVar(&f.layers.layers, "layers", f.layers.layers,
		"Layers in which the fault is visible: kernel (the log), device (the kubelet considers the GPU unhealthy), "+
			"nvml (the node's device plugin), dcgm (readers of DCGM), cuda (the programs in the workload specified "+
			"by --workload)")
	flags.StringVar(&f.layers.workload, "workload", "",
		"TYPE/NAME of the workload for the cuda layer, in the namespace set with -n")
	flags.StringVar(&f.layers.daemonSet, "daemonset", "",
		"NAMESPACE/NAME of the DaemonSet that reads NVML, for the nvml layer (default: NVIDIA's device plugin)")
	_ = cmd.RegisterFlagCompletionFunc("workload", cuda.CompleteWorkload(connection))
	_ = cmd.RegisterFlagCompletionFunc("daemonset", completion.DaemonSets(connection))
	_ = cmd.RegisterFlagCompletionFunc("layers", completeLayers)
	f.real.add(flags)
	flags.Uint64Var(&f.seed, "seed", f.seed,
		"Seed for the random numbers in the line (channel, address); the same seed produces the same line")
}

// inject contains the flags of all commands that write to kernel logs.
type inject struct {
	nodefault.Flags
	gpu    string
	via    string
	form   string
	module moduleFlags
}

func newInject() inject {
	return inject{
		Flags: nodefault.New(), gpu: "0", via: "kmsg", form: "auto", module: moduleFlags{builder: builderImage},
	}
}

func (f *inject) add(cmd *cobra.Command, connection *kube.Connection) {
	f.AddFlags(cmd)
	flags := cmd.Flags()
	flags.Lookup("timeout").Usage =
		"Timeout per node, from creating the debug pod to verifying the line, plus the delays between records"
	flags.Lookup("ttl").Usage =
		"Time after which the run ends unless reverted earlier, 10s to 24h; 0 for no end, which requires --reason; the line remains in the log"
	flags.StringVar(&f.Nodes.Pod, "pod", "", "Select the node and the GPU of this pod, in the namespace set with -n")
	flags.StringVar(&f.gpu, "gpu", f.gpu,
		"GPU: its index in nvidia-smi, its UUID (GPU-...), its PCI address (0000:17:00), several of these (0,1), or all; with --pod or --workload, selects among the pod's GPUs")
	flags.StringVar(&f.via, "via", f.via,
		"kmsg writes to /dev/kmsg; kmod loads a kernel module that writes the line with the kernel facility")
	flags.StringVar(&f.form, "form", f.form,
		"Form of the line: kernel (\"kernel: NVRM: ...\", which most detectors see), plain (\"NVRM: ...\"), bracket (\"[123.456] NVRM: ...\") or auto (kernel); with --via kmod, always the driver's form")
	f.module.add(cmd)

	fixed := func(name string, words ...string) {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	fixed("via", "kmsg", "kmod")
	fixed("form", "auto", "kernel", "plain", "bracket")
	fixed("gpu", "all", "0")
	_ = cmd.RegisterFlagCompletionFunc("pod", completion.Pods(connection))
}

// lineForm returns the form of the lines for the selected value of --via.
func (f *inject) lineForm() (xid.Form, error) {
	form, err := xid.ParseForm(f.form)
	if err == nil {
		form, err = form.Resolve(xid.Via(f.via))
	}
	if err != nil {
		return "", fmt.Errorf("--form: %w", err)
	}
	return form, nil
}

// longest is the maximum duration of all writes to a node.
const longest = 24 * time.Hour

// validate checks everything that does not require a cluster.
func (f *inject) validate() error {
	via, err := xid.ParseVia(f.via)
	if err != nil {
		return fmt.Errorf("--via: %w", err)
	}
	return errors.Join(f.Flags.Validate(), f.module.validate(via))
}

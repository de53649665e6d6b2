// Package xid implements `kubectl gpu-fault xid`, which writes XID lines to the kernel logs of nodes, exactly as the
// NVIDIA driver prints them.
package xid

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns the `xid` command with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := newFlags()
	cmd := &cobra.Command{
		Use:   "xid CODE[,CODE...] (NODE... | -l SELECTOR | --pod POD)",
		Short: "Write XID lines into the kernel logs of nodes",
		Long: `Write XID lines into the kernel logs of nodes, exactly as the NVIDIA driver prints them, and prove each by reading it back.

CODE is an XID (79), a switch error (sxid:20034), or fallen-off-bus for the record that a GPU leaves which is gone already when
the driver starts. Detectors on the node take the line for real: a node may be cordoned, drained and rebooted. Which detector does
what is shown before anything is written.

A privileged pod writes the line and is deleted again. The line itself stays: a kernel log cannot be unwritten.`,
		Example: `  # GPU 0 of node gpu-1 falls off the bus
  kubectl gpu-fault xid 79 gpu-1

  # A double-bit ECC error as it really comes: with the row remapping, the process's channels and the recovery action
  kubectl gpu-fault xid 48 gpu-1 --gpu 1 --cascade

  # On the GPU that a pod holds, in the name of its process
  kubectl gpu-fault xid 31 --pod trainer-0 -n research

  # On all nodes of a kind, four at a time, without asking
  kubectl gpu-fault xid 63 -l nvidia.com/gpu.product=NVIDIA-H200 --parallel 4 --yes

  # As the kernel's own, for readers that look at the facility
  kubectl gpu-fault xid 79 gpu-1 --via kmod

  # On a node without a GPU
  kubectl gpu-fault xid 79 worker-3 --gpu 0000:17:00

  # What would be created
  kubectl gpu-fault xid 79 gpu-1 --dry-run=client`,
		Args: usage.MinArgs(1, "a code, and where to write it", "kubectl gpu-fault xid 79 gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.toOptions(args)
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
	inject // flags of all commands that write

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
}

func newFlags() *flags {
	return &flags{inject: newInject(), count: 1, link: -1}
}

func (f *flags) add(cmd *cobra.Command, connection *kube.Connection) {
	f.inject.add(cmd, connection)
	flags := cmd.Flags()
	flags.BoolVar(&f.cascade, "cascade", f.cascade,
		"Write what really comes together with the XID, in order and with its delays")
	flags.IntVar(&f.count, "count", f.count, "How often to write the lines")
	flags.DurationVar(&f.interval, "interval", f.interval, "Time between two writes of a --count")
	flags.StringVar(&f.process, "process", f.process,
		"PID,NAME of the process in the line; \"none\" for none (default: a pod's own with --pod)")
	flags.StringVar(&f.message, "message", f.message,
		"Text after the code, in place of the driver's; needed for codes that the catalog lacks")
	flags.StringVar(&f.driver, "driver", f.driver,
		"Wording of this driver branch, such as 535 or 580 (default: the node's driver, else 580)")
	flags.StringVar(&f.mig, "mig", f.mig,
		"MIG instance in the line: GPU instance, or GPU instance/compute instance, such as 5 or 5/0")
	flags.IntVar(&f.swtch, "switch", f.swtch, "Number of the NVSwitch, for sxid codes")
	flags.IntVar(&f.link, "link", f.link, "NVLink, for sxid codes (default: the known line's)")
	// pflag omits a default of 0 from the help; the real default, -1, means "not set"
	flags.Lookup("link").DefValue = "0"
	flags.Uint64Var(&f.seed, "seed", f.seed,
		"Chooses the made-up numbers in the line (channel, address); the same seed gives the same line")
}

// inject contains the flags of all commands that write to kernel logs.
type inject struct {
	nodesFlags
	gpu      string
	via      string
	form     string
	module   moduleFlags
	pods     podflags.Flags
	parallel int
	ttl      ttl.Flags
	dryRun   string
	yes      bool
	allow    allowFlags
	format   printer.Format
}

type nodesFlags struct{ selector, pod string }

type allowFlags struct{ controlPlane, lastGPUNode, majority bool }

func newInject() inject {
	return inject{
		gpu: "0", via: "kmsg", form: "auto", module: moduleFlags{builder: builderImage}, pods: podflags.New(),
		parallel: 10, ttl: ttl.New(), dryRun: "none",
	}
}

func (f *inject) add(cmd *cobra.Command, connection *kube.Connection) {
	flags := cmd.Flags()
	flags.StringVarP(&f.selector, "selector", "l", f.selector, "Nodes with these labels")
	flags.StringVar(&f.pod, "pod", f.pod, "The node and the GPU of this pod, in the namespace of -n")
	flags.StringVar(&f.gpu, "gpu", f.gpu,
		"GPU: its index as nvidia-smi counts, its UUID (GPU-...), its PCI address (0000:17:00), several of these (0,1), or all; with --pod among the pod's")
	flags.StringVar(&f.via, "via", f.via,
		"How the line gets into the log: kmsg writes to /dev/kmsg; kmod loads a kernel module for it, whose lines are the kernel's own")
	flags.StringVar(&f.form, "form", f.form,
		"Form of the line: kernel (\"kernel: NVRM: ...\", seen by the most detectors), plain (\"NVRM: ...\"), bracket (\"[123.456] NVRM: ...\"); auto chooses kernel. With --via kmod the line is the driver's")
	f.module.add(cmd)
	f.pods.AddFlags(cmd)
	flags.Lookup("timeout").Usage =
		"Time for one node, from the debug pod's creation to the proven line; a long --count adds its own"
	flags.IntVar(&f.parallel, "parallel", f.parallel, "How many nodes at a time")
	f.ttl.AddFlags(flags)
	flags.Lookup("ttl").Usage =
		"How long the run stays open if nobody reverts it before, 10s to 24h; the line stays in the log whatever you give; 0 for no end, which needs a --reason"
	flags.StringVar(&f.dryRun, "dry-run", f.dryRun,
		"none, client (print the debug pods) or server (ask the API server whether it would admit them); change nothing")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.BoolVarP(&f.yes, "yes", "y", f.yes, "Do not ask")
	flags.BoolVar(&f.allow.controlPlane, "allow-control-plane", false, "Allow nodes of the control plane")
	flags.BoolVar(&f.allow.lastGPUNode, "allow-last-gpu-node", false,
		"Allow a run that aims at every GPU node which is left")
	flags.BoolVar(&f.allow.majority, "allow-majority", false,
		"Allow a run that aims at more than half of the GPU nodes")
	f.format.AddFlags(cmd)

	fixed := func(name string, words ...string) {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	fixed("via", "kmsg", "kmod")
	fixed("form", "auto", "kernel", "plain", "bracket")
	fixed("dry-run", "none", "client", "server")
	fixed("gpu", "all", "0")
	_ = cmd.RegisterFlagCompletionFunc("pod", completion.Pods(connection))
}

// lineForm returns the form of the lines for the selected --via.
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

// longest is the maximum duration of the writes to a node.
const longest = 24 * time.Hour

// validate checks everything that does not require a cluster.
func (f *inject) validate() error {
	if err := f.format.Validate(); err != nil {
		return err
	}
	switch f.dryRun {
	case "none", "client", "server":
	default:
		return fmt.Errorf("--dry-run=%s: choose none, client or server", f.dryRun)
	}
	via, err := xid.ParseVia(f.via)
	if err != nil {
		return fmt.Errorf("--via: %w", err)
	}
	if err := f.module.validate(via); err != nil {
		return err
	}
	if f.parallel < 1 {
		return fmt.Errorf("--parallel %d: give 1 or more", f.parallel)
	}
	if err := f.pods.Validate(); err != nil {
		return err
	}
	return f.ttl.Validate()
}

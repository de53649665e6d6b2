// Package nodefault provides the flags and the control flow shared by the commands that inject faults into nodes.
package nodefault

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/target"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
)

// Flags are the arguments and flags of a command that injects a fault into nodes.
type Flags struct {
	Nodes    target.Nodes
	Parallel int // number of nodes changed in parallel; 0 for fault.InParallel
	DryRun   dryrun.Mode
	Yes      bool
	Allow    fault.Allowances
	TTL      ttl.Flags
	Pods     podflags.Flags
	NoPods   bool // the fault uses only the API
	Format   printer.Format
	Expect   expect.Flags
	Fleet    fleet.Flags // only for commands that register these flags
}

// New returns the default values.
func New() Flags {
	return Flags{DryRun: dryrun.None, TTL: ttl.New(), Pods: podflags.New(), Fleet: fleet.New()}
}

// AddFlags registers the flags.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.Nodes.Selector, "selector", "l", "", "Label selector for the nodes")
	flags.IntVar(&f.Parallel, "parallel", f.Parallel,
		"Number of nodes changed in parallel; 0 means 10 or, for more than 200 nodes, 5% of the nodes, at most 50")
	f.TTL.AddFlags(flags)
	f.DryRun.AddFlag(cmd, dryrun.Usage, dryrun.Modes()...)
	flags.BoolVarP(&f.Yes, "yes", "y", false, "Do not ask for confirmation")
	AddAllowances(flags, &f.Allow)
	if !f.NoPods {
		f.Pods.AddFlags(cmd)
	}
	f.Format.AddFlags(cmd)
	f.Expect.AddFlags(cmd, &f.Format)
}

// AddAllowances registers the flags that lift the limits on the blast radius.
func AddAllowances(flags *pflag.FlagSet, allow *fault.Allowances) {
	flags.BoolVar(&allow.ControlPlane, "allow-control-plane", false, "Allow control plane nodes")
	flags.BoolVar(&allow.LastGPUNode, "allow-last-gpu-node", false,
		"Allow a run that affects all remaining GPU nodes")
	flags.BoolVar(&allow.Majority, "allow-majority", false,
		"Allow a run that affects more than half of the GPU nodes")
}

// Validate checks everything that does not require a cluster.
func (f *Flags) Validate() error {
	var parallel error
	if f.Parallel < 0 {
		parallel = fmt.Errorf("invalid value %d for --parallel: must be 0 or more", f.Parallel)
	}
	return errors.Join(f.DryRun.Validate(dryrun.Modes()...), parallel, f.Nodes.Validate(), f.TTL.Validate(),
		f.Pods.Validate(), f.Format.Validate(), f.Expect.Validate(f.Format), f.validateFleet())
}

// validateFleet rejects options that are not supported from inside the cluster.
func (f *Flags) validateFleet() error {
	switch {
	case f.Fleet.InCluster && f.Expect.Given():
		return errors.New("--in-cluster cannot be used with --expect or --expect-not: follow a run with `kubectl " +
			"gpu-fault watch RUN`")
	case f.Fleet.InCluster && f.Nodes.Pod != "":
		return errors.New("--in-cluster cannot be used with --pod, which selects only one node: omit --in-cluster")
	}
	return f.Fleet.Validate(&f.Pods)
}

package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// starting contains the options of `scenario start`.
type starting struct {
	common
	pack       packFlags
	seed       int64
	drawn      bool // whether the seed is random
	set        map[string]string
	kubeconfig string
	terraform  string
	lasts      time.Duration
	dryRun     dryrun.Mode
	yes        bool
	allow      fault.Allowances
	simulate   int
	workload   string
	with       []string
	format     printer.Format
}

// mostSeeds limits random seeds, so that they are easy to communicate and type.
const mostSeeds = 1_000_000

func (c *common) newStartCommand() *cobra.Command {
	s := &starting{common: *c, dryRun: "none"}
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Create a scenario's problem in the cluster, verify it, and write the candidate's kubeconfig",
		Long: `Create the broken situation of a scenario in its own namespaces, and verify it. The task card on stdout is for the candidate. The kubeconfig
that --kubeconfig-out writes is valid until the time box ends.

With --simulate-gpus, nodes of a cluster without GPUs advertise GPUs. The nodes have no driver, so scenarios about NVIDIA's container runtime are
not available. Training requires the sample workload's image, which includes a driver, on the nodes.

With --workload, the exercise breaks one of your Deployments instead of creating a lab, if the scenario supports this (gpu-resources). No manager, such as
GitOps or an operator, may change the Deployment during the exercise. At the end, the changed fields are restored; changes by other clients are kept.

With --terraform, the candidate also gets the lab's Terraform module, if the scenario has one (see scenario show). The module is as broken
as the cluster. The candidate fixes the cluster or the module; submit the module with scenario submit --terraform.

With --with, one candidate gets several exercises at the same time. The kubeconfig has a context for each. Without an ID, scenario grade and
scenario end apply to all of them.

If the cluster does not enforce NetworkPolicies, blocked-egress-node, which adds a firewall rule on a node, replaces blocked-egress. The kernel
removes the rule when the time box ends. The candidate then has root access to nodes.

The state of the cluster is recorded before the exercise, and compared with the current state for grading and at the end. The same --seed
produces the same variant, names and numbers.`,
		Example: `  # Start a random variant, and write the candidate's kubeconfig
  kubectl gpu-fault scenario start gpu-resources --kubeconfig-out candidate.kubeconfig

  # Start the same variant as for the last candidate
  kubectl gpu-fault scenario start gpu-resources --seed 4711 --kubeconfig-out candidate.kubeconfig

  # Simulate two GPUs on each of two nodes, on a cluster without GPUs such as kind
  kubectl gpu-fault scenario start gpu-resources --simulate-gpus 2 \
      --kubeconfig-out candidate.kubeconfig

  # Break one of your Deployments
  kubectl gpu-fault scenario start gpu-resources --workload deployment/trainer -n team-a \
      --kubeconfig-out candidate.kubeconfig

  # Also write the Terraform module that manages the broken objects
  kubectl gpu-fault scenario start blocked-egress --terraform module \
      --kubeconfig-out candidate.kubeconfig

  # Give a candidate two problems at the same time
  kubectl gpu-fault scenario start gpu-resources --with wrong-role-binding \
      --kubeconfig-out candidate.kubeconfig

  # Select a variant and a time box of one hour
  kubectl gpu-fault scenario start gpu-memory --set via=half --for 1h`,
		Args: usage.MaxArgs(1, "one scenario", "kubectl gpu-fault scenario start gpu-resources"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("seed") {
				s.seed, s.drawn = 1+rand.Int64N(mostSeeds-1), true
			}
			if err := errors.Join(s.validate(), checkSimulation(cmd.Flags(), s.simulate)); err != nil {
				return err
			}
			found, err := s.pack.load(one(args))
			if err != nil {
				return err
			}
			all, err := s.others(found)
			if err != nil {
				return err
			}
			if len(all) > 1 {
				return s.runTogether(cmd.Context(), all)
			}
			return s.run(cmd.Context(), found)
		},
		ValidArgsFunction: completeNames,
	}
	s.addFlags(cmd)
	return cmd
}

func (s *starting) addFlags(cmd *cobra.Command) {
	s.pack.addFlags(cmd)
	s.pack.addTrust(cmd)
	flags := cmd.Flags()
	flags.Int64Var(&s.seed, "seed", 0,
		"Seed that determines the variant, names and numbers (default: random; printed)")
	flags.StringToStringVar(&s.set, "set", nil, "Parameters of the scenario, as NAME=VALUE")
	flags.StringVar(&s.kubeconfig, "kubeconfig-out", "", "File for the candidate's kubeconfig; must not exist")
	flags.StringVar(&s.terraform, "terraform", "",
		"Directory for the Terraform module of the lab, which the candidate may fix instead of the cluster; must be empty or not exist")
	flags.DurationVar(&s.lasts, "for", 0, "Time box (default: from the scenario)")
	s.dryRun.AddFlag(cmd,
		"none, client (only print what would be created) or server (also check images and policies, with temporary pods)",
		dryrun.Modes()...)
	flags.BoolVarP(&s.yes, "yes", "y", false, "Do not ask for confirmation")
	flags.StringVar(&s.workload, "workload", "",
		"Existing Deployment to break instead of a new lab, specified as deployment/NAME, in the namespace set with -n; "+
			"restored at the end")
	flags.StringSliceVar(&s.with, "with", nil,
		"Other scenarios to start at the same time, as separate exercises for the same candidate; none may change nodes")
	_ = cmd.RegisterFlagCompletionFunc("with", completeNames)
	addSimulation(flags, &s.simulate)
	nodefault.AddAllowances(flags, &s.allow)
	s.pods.AddImageFlags(cmd)
	s.format.AddFlags(cmd)
}

// validate checks everything that does not require a cluster.
func (s *starting) validate() error {
	if s.lasts != 0 && (s.lasts < 10*time.Minute || s.lasts > 24*time.Hour) {
		return fmt.Errorf("invalid value %s for --for: must be 10m to 24h; API servers issue no shorter-lived tokens", s.lasts)
	}
	if err := mustBeNew(s.kubeconfig); err != nil {
		return err
	}
	if s.terraform != "" {
		if err := terraform.Vacant(s.terraform); err != nil {
			return fmt.Errorf("--terraform: %w", err)
		}
	}
	return errors.Join(s.dryRun.Validate(dryrun.Modes()...), s.format.Validate())
}

// mustBeNew returns an error if the file already exists. An empty name means no file.
func mustBeNew(name string) error {
	if name == "" {
		return nil
	}
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("--kubeconfig-out: %s already exists: specify another name, or remove the file", name)
	}
	return nil
}

// module returns the Terraform module to write, or nil if none was requested.
func (s *starting) module(r *scenario.Resolved) (terraform.Files, error) {
	if s.terraform == "" {
		return nil, nil
	}
	source, err := r.Module()
	if err != nil {
		return nil, err
	}
	files, err := source.Write()
	if err != nil {
		return nil, fmt.Errorf("--terraform: %w", err)
	}
	return files, nil
}

// withModules lists the built-in scenarios that have a Terraform module, for an error message.
func withModules() string {
	all, err := scenario.Builtin()
	if err != nil {
		return ""
	}
	var names []string
	for _, one := range all {
		if one.Terraform != nil {
			names = append(names, one.Metadata.Name)
		}
	}
	return "; scenarios with a module: " + strings.Join(names, ", ")
}

func (s *starting) run(ctx context.Context, found *scenario.Scenario) error {
	if s.terraform != "" && found.Terraform == nil {
		return fmt.Errorf("--terraform: scenario %s has no Terraform module%s", found.Metadata.Name, withModules())
	}
	lab, err := s.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow, lab.SimulateGPUs = s.allow, s.simulate
	lab.Workload, lab.WorkloadNamespace = s.workload, s.connection.Connected().Namespace
	resolved, err := lab.Resolve(ctx, found, s.seed, s.set)
	if err != nil {
		return kube.Explain(err)
	}
	if err := s.consent(ctx, s.pack, resolved.NeedsConsent(), s.yes); err != nil {
		return err
	}
	files, err := s.module(resolved)
	if err != nil {
		return err
	}
	if s.dryRun != "client" {
		err := lab.Preflight(ctx, resolved)
		if instead := s.otherwise(err); instead != nil {
			printer.Talk(s.streams.ErrOut,
				"This cluster does not enforce NetworkPolicies: %[2]s replaces %[1]s, changes the firewall of a "+
					"node, and gives the candidate root access to nodes.",
				found.Metadata.Name, instead.Metadata.Name)
			return s.run(ctx, instead)
		}
		if err != nil {
			return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
		}
	}
	s.before(resolved)
	if s.dryRun != "none" {
		return s.printDryRun(resolved)
	}
	question := fmt.Sprintf("Start %s in context %q?", resolved.Metadata.Name, s.connection.Connected().Context)
	if err := confirm.Ask(ctx, s.streams, question, s.yes); err != nil {
		return err
	}
	if files != nil { // before creating the lab, so that an unwritable directory is reported early
		if err := files.WriteFolder(s.terraform); err != nil {
			return fmt.Errorf("nothing was changed: --terraform: %w", err)
		}
	}
	e, err := lab.Start(ctx, resolved, exercise.StartOptions{
		For: s.lasts, Consent: true, Terraform: files != nil, Command: session.CommandLine(os.Args),
	})
	if err != nil {
		files.Remove(s.terraform)
		return kube.Explain(err)
	}
	return s.print(lab, e)
}

// otherwise returns the scenario to start instead if the preflight failed because the cluster does not enforce what the
// chosen scenario requires. It returns nil if there is none, or if other options depend on the chosen scenario. The
// error message then names the alternative.
func (s *starting) otherwise(err error) *scenario.Scenario {
	var unenforced *exercise.UnenforcedError
	if !errors.As(err, &unenforced) || unenforced.Otherwise == "" || s.pack.file != "" || s.terraform != "" ||
		s.workload != "" || len(s.set) > 0 {
		return nil
	}
	instead, err := scenario.Find(unenforced.Otherwise)
	if err != nil {
		return nil
	}
	return instead
}

// before prints what will happen, which objects are affected, and how to undo it. The output is for the trainer.
func (s *starting) before(r *scenario.Resolved) {
	say := func(format string, args ...any) { printer.Talk(s.streams.ErrOut, format, args...) }
	minutes := time.Duration(r.Metadata.Minutes) * time.Minute
	if s.lasts > 0 {
		minutes = s.lasts
	}
	say("Scenario:  %s (seed %d) in context %q", r.Metadata.Name, r.Seed, s.connection.Connected().Context)
	say("Creates:   %s", strings.Join(made(r), ", "))
	if sim := r.Facts.Simulation; sim != nil {
		say("Simulates: %s on %s, by changing the nodes' status and labels until the exercise ends",
			count.Of(sim.GPUs, "GPU"), strings.Join(sim.Nodes, ", "))
		if n := r.Facts.WaitingGPUs; n > 0 {
			say("Warning:   pods of other users are waiting for %s, and may start on simulated GPUs", count.Of(n, "GPU"))
		}
	}
	if w := r.Public.Access.Workload; w != nil {
		say("Candidate: can view namespace %s except its Secrets, and change %s %s, for %s", w.Namespace, w.Kind, w.Name,
			minutes)
		say(
			"Warning:   anyone who can change a pod template can run any program in the namespace with any of its service accounts, and mount its Secrets",
		)
	} else {
		say("Candidate: admin of %s, for %s", strings.Join(r.Public.Access.Namespaces, ", "), minutes)
	}
	if s.terraform != "" {
		say("Writes:    the Terraform module for %d of the lab's objects, to %s", len(r.Terraform.Manages), s.terraform)
	}
	say("Undo:      kubectl gpu-fault scenario end, or kubectl gpu-fault revert for its run")
}

// made describes the objects that the steps create or change, without duplicates.
func made(r *scenario.Resolved) []string {
	var words []string
	add := func(word string) {
		for _, w := range words {
			if w == word {
				return
			}
		}
		words = append(words, word)
	}
	for _, step := range append(append([]scenario.Step{}, r.Setup...), r.Inject...) {
		switch {
		case step.Create != nil:
			for _, o := range step.Create.Objects {
				kind, _ := o["kind"].(string)
				add(kind)
			}
		case step.Patch != nil:
			add("a change to " + step.Patch.Object.Kind + " " + step.Patch.Object.Name)
		case step.XID != nil:
			add("XID lines in the kernel log of " + step.XID.Node)
		case step.Runtime != nil:
			add("a broken containerd configuration on " + step.Runtime.Node)
		case step.Firewall != nil:
			add(fmt.Sprintf("a firewall rule on %s that blocks TCP port %d", step.Firewall.Node, step.Firewall.Port))
		case step.Device != nil:
			add(fmt.Sprintf("an unhealthy GPU %s on %s", step.Device.GPU, step.Device.Node))
		case step.CUDA != nil:
			add("the CUDA shim in " + step.CUDA.Workload.Kind + " " + step.CUDA.Workload.Name)
		}
	}
	return words
}

// started is the output of `start -o json`. Only the card may be given to the candidate.
type started struct {
	exercise.Exercise
	Card exercise.Card `json:"card"`
}

func (s *starting) print(lab *exercise.Lab, e *exercise.Exercise) error {
	card := lab.Card(e)
	card.Module = s.terraform
	var writeErr error
	if s.kubeconfig != "" {
		card.Kubeconfig = s.kubeconfig
		if err := writeNew(s.kubeconfig, e.Kubeconfig); err != nil {
			writeErr = fmt.Errorf(
				"the exercise is running, but the kubeconfig could not be written: %w; to write one, run: kubectl "+
					"gpu-fault scenario status %s --kubeconfig-out FILE",
				err, e.ID,
			)
		}
	} else {
		printer.Talk(s.streams.ErrOut,
			"To write the candidate's kubeconfig: kubectl gpu-fault scenario status %s --kubeconfig-out FILE", e.ID)
	}
	if !s.format.IsTable() {
		return errors.Join(s.format.Object(s.streams.Out, started{*e, card}, "exercise/"+e.ID), writeErr)
	}
	_, err := fmt.Fprintln(s.streams.Out, printer.Wrap(printer.Escape(cardText(card)), printer.Width(s.streams.Out)))
	printer.Talk(s.streams.ErrOut, "Exercise %s (seed %d) is ready, and ends at %s.", e.ID, e.Seed,
		e.Until.Local().Format("15:04"))
	return errors.Join(err, writeErr)
}

func (s *starting) printDryRun(r *scenario.Resolved) error {
	if !s.format.IsTable() {
		return s.format.Object(s.streams.Out, r, "scenario/"+r.Metadata.Name)
	}
	_, err := fmt.Fprintf(s.streams.Out, "scenario/%s started (%s dry run)\n", r.Metadata.Name, s.dryRun)
	return err
}

// cardText formats the card as text.
func cardText(c exercise.Card) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n\n", c.Title, strings.TrimSpace(c.Briefing))
	if c.Simulated != "" {
		fmt.Fprintf(&b, "Simulated: %s\n\n", strings.TrimSpace(c.Simulated))
	}
	if c.Terraform != "" {
		fmt.Fprintf(&b, "Terraform: %s\n\n", strings.TrimSpace(c.Terraform))
	}
	for _, access := range c.Access {
		fmt.Fprintf(&b, "You may:   %s\n", access)
	}
	fmt.Fprintf(&b, "Time:      %s, until %s", count.Of(c.Minutes, "minute"), c.Deadline.Local().Format("15:04"))
	if c.Kubeconfig != "" {
		fmt.Fprintf(&b, "\nTo begin:  export KUBECONFIG=%s", c.Kubeconfig)
	}
	if c.Context != "" {
		fmt.Fprintf(&b, "\nContext:   kubectl --context %s", c.Context)
	}
	if c.Module != "" {
		fmt.Fprintf(&b, "\nModule:    %s; you may fix it instead of the cluster", c.Module)
	}
	b.WriteString("\nDiagnosis: tell whoever gave you this card what is wrong: component, object, field and mechanism")
	return b.String()
}

// writeNew writes a file with credentials. The file must not exist, and is readable only by its owner.
func writeNew(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

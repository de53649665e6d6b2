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

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// starting is a command line of `scenario start`.
type starting struct {
	common
	pack       packFlags
	seed       int64
	set        map[string]string
	kubeconfig string
	lasts      time.Duration
	dryRun     string
	yes        bool
	allow      fault.Allowances
	format     printer.Format
}

// mostSeeds keeps drawn seeds short, so that they can be said and typed.
const mostSeeds = 1_000_000

func (c *common) newStartCommand() *cobra.Command {
	s := &starting{common: *c, dryRun: "none"}
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Build the broken situation, prove that it is broken, and write the candidate's kubeconfig",
		Long: `Build the broken situation of a scenario in namespaces of its own, prove that it is broken, and hand it over: the card on stdout is for the
candidate, and --kubeconfig-out is what they work with until the time box ends.

The state of the cluster is remembered before anything is made, and compared when the work is graded and when the exercise ends. The
same --seed gives the same variant, names and numbers.`,
		Example: `  # Any variant, and a kubeconfig for the candidate
  kubectl gpu-fault scenario start gpu-resources --kubeconfig-out candidate.kubeconfig

  # The same as the last candidate had
  kubectl gpu-fault scenario start gpu-resources --seed 4711 --kubeconfig-out candidate.kubeconfig

  # A variant of your choice, and an hour for it
  kubectl gpu-fault scenario start gpu-memory --set variant=batch --for 1h`,
		Args: usage.MaxArgs(1, "one scenario", "kubectl gpu-fault scenario start gpu-resources"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("seed") {
				s.seed = 1 + rand.Int64N(mostSeeds-1)
			}
			if err := s.validate(); err != nil {
				return err
			}
			found, err := s.pack.load(one(args))
			if err != nil {
				return err
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
	flags.Int64Var(&s.seed, "seed", 0, "Draws the variant, the names and the numbers (default: a new one, which is told)")
	flags.StringToStringVar(&s.set, "set", nil, "Set parameters yourself, as NAME=VALUE")
	flags.StringVar(&s.kubeconfig, "kubeconfig-out", "", "File for the candidate's kubeconfig; it must not exist")
	flags.DurationVar(&s.lasts, "for", 0, "Time box (default: the scenario's)")
	flags.StringVar(&s.dryRun, "dry-run", s.dryRun, "none, client (say what would be made) or server (also try images and policies, with pods that are deleted again); make nothing of the lab")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.BoolVarP(&s.yes, "yes", "y", false, "Do not ask")
	addAllowances(flags, &s.allow)
	s.format.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// validate checks everything that needs no cluster.
func (s *starting) validate() error {
	switch {
	case s.dryRun != "none" && s.dryRun != "client" && s.dryRun != "server":
		return fmt.Errorf("--dry-run=%s: choose none, client or server", s.dryRun)
	case s.lasts != 0 && (s.lasts < 10*time.Minute || s.lasts > 24*time.Hour):
		return fmt.Errorf("--for %s: give 10m to 24h; API servers give no tokens for less", s.lasts)
	}
	if s.kubeconfig != "" {
		if _, err := os.Lstat(s.kubeconfig); err == nil {
			return fmt.Errorf("--kubeconfig-out %s exists: give another name, or remove it", s.kubeconfig)
		}
	}
	return s.format.Validate()
}

func (s *starting) run(ctx context.Context, found *scenario.Scenario) error {
	lab, err := s.lab(ctx)
	if err != nil {
		return err
	}
	lab.Allow = s.allow
	facts, err := scenario.GatherFacts(ctx, lab.Client)
	if err != nil {
		return kube.Explain(err)
	}
	resolved, err := found.Resolve(s.seed, s.set, facts)
	if err != nil {
		return err
	}
	if err := s.consent(ctx, s.pack, resolved.NeedsConsent(), s.yes); err != nil {
		return err
	}
	if s.dryRun != "client" {
		if err := lab.Preflight(ctx, resolved); err != nil {
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
	e, err := lab.Start(ctx, resolved, exercise.StartOptions{For: s.lasts, Consent: true, Command: session.CommandLine(os.Args)})
	if err != nil {
		return kube.Explain(err)
	}
	return s.print(lab, e)
}

// before says what is going to happen, where, and how it goes away. It goes to the trainer, who may know.
func (s *starting) before(r *scenario.Resolved) {
	say := func(format string, args ...any) { printer.Talk(s.streams.ErrOut, format, args...) }
	minutes := time.Duration(r.Metadata.Minutes) * time.Minute
	if s.lasts > 0 {
		minutes = s.lasts
	}
	say("Scenario:  %s (seed %d) in context %q", r.Metadata.Name, r.Seed, s.connection.Connected().Context)
	say("Makes:     %s", strings.Join(made(r), ", "))
	say("Candidate: admin of %s, for %s", strings.Join(r.Public.Access.Namespaces, ", "), minutes)
	say("Undo:      kubectl gpu-fault scenario end, or kubectl gpu-fault revert of its run")
}

// made names what the steps make and change, each kind once.
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
			add("a change of " + step.Patch.Object.Kind + " " + step.Patch.Object.Name)
		case step.XID != nil:
			add("XID lines in the kernel log of " + step.XID.Node)
		case step.Runtime != nil:
			add("a broken containerd configuration on " + step.Runtime.Node)
		case step.CUDA != nil:
			add("the CUDA shim in " + step.CUDA.Workload.Kind + " " + step.CUDA.Workload.Name)
		}
	}
	return words
}

// started is what `start -o json` prints. Only the card may be given to the candidate.
type started struct {
	exercise.Exercise
	Card exercise.Card `json:"card"`
}

func (s *starting) print(lab *exercise.Lab, e *exercise.Exercise) error {
	card := lab.Card(e)
	var writeErr error
	if s.kubeconfig != "" {
		card.Kubeconfig = s.kubeconfig
		if err := writeNew(s.kubeconfig, e.Access); err != nil {
			writeErr = fmt.Errorf("the exercise runs, and the kubeconfig could not be written: %w; get another with: kubectl gpu-fault scenario status %s --kubeconfig-out FILE", err, e.ID)
		}
	} else {
		printer.Talk(s.streams.ErrOut, "The candidate's kubeconfig: kubectl gpu-fault scenario status %s --kubeconfig-out FILE", e.ID)
	}
	if !s.format.IsTable() {
		return errors.Join(s.format.Object(s.streams.Out, started{*e, card}, "exercise/"+e.ID), writeErr)
	}
	_, err := fmt.Fprintln(s.streams.Out, printer.Wrap(printer.Escape(cardText(card)), printer.Width(s.streams.Out)))
	printer.Talk(s.streams.ErrOut, "Exercise %s (seed %d) is broken as it shall be, and runs until %s.", e.ID, e.Seed, e.Until.Local().Format("15:04"))
	return errors.Join(err, writeErr)
}

func (s *starting) printDryRun(r *scenario.Resolved) error {
	if !s.format.IsTable() {
		return s.format.Object(s.streams.Out, r, "scenario/"+r.Metadata.Name)
	}
	_, err := fmt.Fprintf(s.streams.Out, "scenario/%s started (%s dry run)\n", r.Metadata.Name, s.dryRun)
	return err
}

// cardText is the card for people.
func cardText(c exercise.Card) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n\n", c.Title, strings.TrimSpace(c.Briefing))
	if c.Simulated != "" {
		fmt.Fprintf(&b, "Simulated: %s\n\n", strings.TrimSpace(c.Simulated))
	}
	for _, access := range c.Access {
		fmt.Fprintf(&b, "You may:   %s\n", access)
	}
	fmt.Fprintf(&b, "Time:      %d minutes, until %s", c.Minutes, c.Deadline.Local().Format("15:04"))
	if c.Kubeconfig != "" {
		fmt.Fprintf(&b, "\nBegin:     export KUBECONFIG=%s", c.Kubeconfig)
	}
	return b.String()
}

// writeNew writes a file with credentials, which must not exist and which nobody else may read.
func writeNew(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

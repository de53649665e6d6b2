package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// packFlags select a scenario: a built-in scenario by its name, or a file.
type packFlags struct {
	file     string
	identity string
	trust    bool
}

func (p *packFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&p.file, "file", "f", "", "Scenario file to use instead of NAME")
	flags.StringVarP(&p.identity, "identity", "i", "",
		"File with the age identity that decrypts the sealed half of --file")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	_ = cmd.MarkFlagFilename("identity")
}

// addTrust registers the flag that allows potentially harmful steps in third-party packs. It is for commands that run
// packs.
func (p *packFlags) addTrust(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.trust, "trust-pack", false,
		"Allow the potentially harmful actions that the command lists for --file; --yes does not allow them")
}

// consent asks for confirmation of potentially harmful steps in a third-party scenario.
func (c *common) consent(ctx context.Context, pack packFlags, wants []string, yes bool) error {
	if pack.file == "" || len(wants) == 0 || pack.trust {
		return nil
	}
	printer.Talk(c.streams.ErrOut, "%s contains actions that could harm the cluster:\n  %s", pack.file,
		strings.Join(wants, "\n  "))
	if yes {
		return fmt.Errorf(
			"nothing was changed: read %s, and specify --trust-pack if you trust its author; --yes is not enough",
			pack.file,
		)
	}
	return confirm.Ask(ctx, c.streams, "Do you trust its author?", false)
}

// wants returns the potentially harmful steps of the scenarios, for any seed.
func wants(chosen []*scenario.Scenario) []string {
	var all []string
	for _, s := range chosen {
		all = append(all, s.NeedsConsent()...)
	}
	return all
}

// load loads the selected scenario.
func (p *packFlags) load(name string) (*scenario.Scenario, error) {
	switch {
	case name != "" && p.file != "":
		return nil, fmt.Errorf("scenario name %s and --file %s cannot be used together", name, p.file)
	case p.file == "" && p.identity != "":
		return nil, errors.New("--identity requires --file")
	case p.file != "":
		identities, err := p.identities()
		if err != nil {
			return nil, err
		}
		s, err := scenario.Load(p.file, identities...)
		if errors.Is(err, scenario.ErrSealed) && p.identity == "" {
			err = fmt.Errorf("%w: specify --identity FILE", err)
		}
		return s, err
	case name == "":
		return nil, errors.New("specify a scenario; to list the scenarios, run: kubectl gpu-fault scenario list")
	}
	return scenario.Find(name)
}

func (p *packFlags) identities() ([]age.Identity, error) {
	if p.identity == "" {
		return nil, nil
	}
	f, err := os.Open(p.identity)
	if err != nil {
		return nil, fmt.Errorf("--identity: %w", err)
	}
	defer f.Close()
	identities, err := age.ParseIdentities(f)
	if err != nil {
		return nil, fmt.Errorf("--identity %s: %w; to create an identity file, use age-keygen", p.identity, err)
	}
	return identities, nil
}

// addSimulation registers the flag that simulates GPUs in a cluster without GPUs.
func addSimulation(flags *pflag.FlagSet, gpus *int) {
	flags.IntVar(gpus, simulateFlag, 0,
		"In a cluster without GPUs, number of GPUs to advertise on one or two nodes until the exercise ends")
}

const simulateFlag = "simulate-gpus"

// checkSimulation rejects an invalid number of simulated GPUs.
func checkSimulation(flags *pflag.FlagSet, gpus int) error {
	if flags.Changed(simulateFlag) && (gpus < 1 || gpus > scenario.MostSimulatedGPUs) {
		return fmt.Errorf("invalid value %d for --%s: must be 1 to %d", gpus, simulateFlag, scenario.MostSimulatedGPUs)
	}
	return nil
}

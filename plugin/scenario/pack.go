package scenario

import (
	"errors"
	"fmt"
	"os"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// packFlags say which scenario is meant: one of ours by its name, or a file.
type packFlags struct {
	file     string
	identity string
}

func (p *packFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&p.file, "file", "f", "", "A scenario of your own, in place of NAME")
	flags.StringVarP(&p.identity, "identity", "i", "", "File with the age identity that opens the sealed half of --file")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	_ = cmd.MarkFlagFilename("identity")
}

// load reads the scenario.
func (p *packFlags) load(name string) (*scenario.Scenario, error) {
	switch {
	case name != "" && p.file != "":
		return nil, fmt.Errorf("%s is one scenario and --file %s another: give one of them", name, p.file)
	case p.file == "" && p.identity != "":
		return nil, errors.New("--identity opens what --file names: give both")
	case p.file != "":
		identities, err := p.identities()
		if err != nil {
			return nil, err
		}
		s, err := scenario.Load(p.file, identities...)
		if errors.Is(err, scenario.ErrSealed) && p.identity == "" {
			err = fmt.Errorf("%w: give --identity FILE", err)
		}
		return s, err
	case name == "":
		return nil, errors.New("name a scenario; kubectl gpu-fault scenario list shows them")
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
		return nil, fmt.Errorf("--identity %s: %w; age-keygen makes such a file", p.identity, err)
	}
	return identities, nil
}

// addAllowances registers the flags that lift the limits of the blast radius, for scenarios that break nodes.
func addAllowances(flags *pflag.FlagSet, allow *fault.Allowances) {
	flags.BoolVar(&allow.ControlPlane, "allow-control-plane", false, "Allow faults on nodes of the control plane")
	flags.BoolVar(&allow.LastGPUNode, "allow-last-gpu-node", false, "Allow faults that hit every GPU node which is left")
	flags.BoolVar(&allow.Majority, "allow-majority", false, "Allow faults that hit more than half of the GPU nodes")
}

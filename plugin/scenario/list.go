package scenario

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// publicHalf is a scenario without its answer, as printed by `list` and `show`.
type publicHalf struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   scenario.Metadata `json:"metadata"`
	Requires   scenario.Requires `json:"requires,omitzero"`
	Public     scenario.Public   `json:"public"`
}

// publicList is the output of `list -o json`.
type publicList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []publicHalf `json:"items"`
}

func publicOf(s *scenario.Scenario) publicHalf {
	return publicHalf{
		APIVersion: scenario.APIVersion, Kind: scenario.Kind, Metadata: s.Metadata, Requires: s.Requires,
		Public: s.Public,
	}
}

func (c *common) newListCommand() *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios and their requirements",
		Example: `  # List the scenarios
  kubectl gpu-fault scenario list

  # List the exercises
  kubectl gpu-fault scenario status --all`,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			all, err := scenario.Listing()
			if err != nil {
				return err
			}
			if !format.IsTable() {
				list := publicList{APIVersion: scenario.APIVersion, Kind: scenario.Kind + "List", Items: []publicHalf{}}
				var names []string
				for _, s := range all {
					list.Items, names = append(list.Items, publicOf(s)), append(names, "scenario/"+s.Metadata.Name)
				}
				return format.Object(c.streams.Out, list, names...)
			}
			t := &printer.Table{
				Header: []string{"NAME", "LEVEL", "MINUTES", "NEEDS", "TITLE"}, NoHeader: format.NoHeader,
			}
			if format.IsWide() {
				t.Header = append(t.Header, "TAGS")
			}
			for _, s := range all {
				row := []string{
					s.Metadata.Name, s.Metadata.Difficulty, strconv.Itoa(s.Metadata.Minutes), needs(s.Requires),
					s.Public.Title,
				}
				if format.IsWide() {
					row = append(row, strings.Join(s.Metadata.Tags, ","))
				}
				t.Add(row...)
			}
			return t.Write(c.streams.Out)
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// needs summarizes what a scenario requires of the cluster.
func needs(r scenario.Requires) string {
	var words []string
	if r.Nodes > 0 {
		words = append(words, count.Of(r.Nodes, "GPU node"))
	}
	if r.GPUs > 0 {
		gpus := count.Of(r.GPUs, "free GPU")
		if r.Nodes > 1 {
			words = []string{words[0] + " with " + gpus + " each"}
		} else {
			words = append(words, gpus)
		}
	}
	if r.NetworkPolicy {
		words = append(words, "enforced NetworkPolicies")
	}
	if r.NodeAccess {
		words = append(words, "privileged pods")
	}
	if r.Toolkit {
		words = append(words, "NVIDIA's runtime")
	}
	if r.DevicePlugin {
		words = append(words, "a device plugin")
	}
	if len(words) == 0 {
		return "any cluster"
	}
	return strings.Join(words, ", ")
}

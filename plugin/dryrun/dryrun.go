// Package dryrun provides --dry-run.
package dryrun

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Mode is the value of --dry-run.
type Mode string

// The modes are the same as in kubectl.
const (
	None   Mode = "none"
	Client Mode = "client" // only print what would be done
	Server Mode = "server" // also have the API server check it
)

// Modes returns all modes. Commands that mainly change nodes do not support Server, because the API server cannot check
// changes on nodes.
func Modes() []Mode { return []Mode{None, Client, Server} }

// Usage describes the flag for most commands that support all modes.
const Usage = "none, client (only print what would be done) or server (also run all checks)"

// AddFlag registers --dry-run with the supported modes.
func (m *Mode) AddFlag(cmd *cobra.Command, usage string, supported ...Mode) {
	*m = None
	flags := cmd.Flags()
	flags.StringVar((*string)(m), "dry-run", string(None), usage)
	flags.Lookup("dry-run").NoOptDefVal = string(Client)
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions(words(supported), cobra.ShellCompDirectiveNoFileComp))
}

// Validate returns an error if the mode is not supported.
func (m Mode) Validate(supported ...Mode) error {
	switch {
	case slices.Contains(supported, m):
		return nil
	case m == Server:
		return errors.New(
			"--dry-run=server is not supported: the API server cannot validate changes on nodes; use --dry-run=client",
		)
	}
	return fmt.Errorf("invalid value %q for --dry-run: supported values: %s", m, strings.Join(words(supported), ", "))
}

func words(modes []Mode) []string {
	var all []string
	for _, m := range modes {
		all = append(all, string(m))
	}
	return all
}

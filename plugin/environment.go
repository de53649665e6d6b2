package plugin

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// environmentPrefix begins the names of variables that set flags: KUBECTL_GPU_FAULT_LEDGER_NAMESPACE sets --ledger-namespace.
const environmentPrefix = "KUBECTL_GPU_FAULT_"

// perCall are flags that must be typed: a variable that is forgotten in a shell must not confirm or aim a fault.
var perCall = map[string]bool{"yes": true, "output": true, "dry-run": true, "all": true, "selector": true, "pod": true, "gpu": true}

// fromEnvironment makes every command take the flags that were not given from the environment: flag > environment > default.
func fromEnvironment(root *cobra.Command) {
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		var failed error
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Changed || perCall[f.Name] || strings.HasPrefix(f.Name, "allow-") || failed != nil {
				return
			}
			name := environmentPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			value, ok := os.LookupEnv(name)
			if !ok || value == "" {
				return
			}
			if err := cmd.Flags().Set(f.Name, value); err != nil {
				failed = fmt.Errorf("environment variable %s: %w", name, err)
			}
		})
		return failed
	}
}

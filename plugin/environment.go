package plugin

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// environmentPrefix begins the names of variables that set flags: KUBECTL_GPU_FAULT_LEDGER_NAMESPACE sets
// --ledger-namespace.
const environmentPrefix = "KUBECTL_GPU_FAULT_"

// settable returns the flags that a variable may set: how a site's clusters are reached by the debug pods. What aims,
// widens or confirms a fault must be typed; a variable that is forgotten in a shell must not do it.
func settable() []string {
	return []string{
		"builder-image", "image", "image-pull-policy", "image-pull-secret", "ledger-namespace", "parallel", "timeout",
	}
}

// aboutEnvironment returns what help says about the variables.
func aboutEnvironment() string {
	return fmt.Sprintf(`A variable sets a flag that is not given: %sLEDGER_NAMESPACE sets --ledger-namespace. There are such variables for
--%s.`, environmentPrefix, strings.Join(settable(), ", --"))
}

// fromEnvironment takes the flags that were not given from the environment: flag > environment > default.
func fromEnvironment(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !slices.Contains(settable(), f.Name) || failed != nil {
			return
		}
		name := environmentPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok || value == "" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = fmt.Errorf("environment variable %s, for %w", name, usage.Value(err))
		}
	})
	return failed
}

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

// environmentPrefix is the prefix of environment variables that set flags: KUBECTL_GPU_FAULT_LEDGER_NAMESPACE sets
// --ledger-namespace.
const environmentPrefix = "KUBECTL_GPU_FAULT_"

// settable returns the flags that environment variables may set: site-specific settings of the pods. Flags that target,
// widen or confirm a fault must be typed, because a variable left over in a shell must never do this.
func settable() []string {
	return []string{
		"builder-image", "image", "image-pull-policy", "image-pull-secret", "ledger-namespace", "parallel",
		"real-image", "runtime-class", "timeout",
	}
}

// aboutEnvironment returns the help text about environment variables.
func aboutEnvironment() string {
	return fmt.Sprintf(`Environment variables set flags that are not specified: for example, %sLEDGER_NAMESPACE sets --ledger-namespace. Supported flags:
--%s.`, environmentPrefix, strings.Join(settable(), ", --"))
}

// fromEnvironment sets flags from the environment if they were not specified on the command line. A flag takes
// precedence over its variable, and the variable over the flag's default.
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

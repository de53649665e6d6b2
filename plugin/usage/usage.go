// Package usage validates command lines and returns errors that describe how to correct them.
package usage

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NoArgs returns an error if there are arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments", name(cmd))
	}
	return nil
}

// MinArgs requires at least n arguments. The what parameter describes the arguments, for example "a code and a target".
// The example parameter is a complete command line.
func MinArgs(n int, what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return fmt.Errorf("%s requires %s, as in: %s", name(cmd), what, example)
		}
		return nil
	}
}

// MaxArgs requires at most n arguments.
func MaxArgs(n int, what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("%s takes only %s, as in: %s", name(cmd), what, example)
		}
		return nil
	}
}

// ExactArgs requires exactly n arguments.
func ExactArgs(n int, what, example string) cobra.PositionalArgs {
	return cobra.MatchAll(MinArgs(n, what, example), MaxArgs(n, what, example))
}

// Known requires every argument to be one of the command's ValidArgs.
func Known(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if !slices.Contains(cmd.ValidArgs, arg) {
				return fmt.Errorf("no %s for %q; supported values: %s", what, arg, strings.Join(cmd.ValidArgs, ", "))
			}
		}
		return nil
	}
}

// name returns the words of the command after `kubectl gpu-fault`.
func name(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().CommandPath()+" ")
}

// UnknownCommand returns the error for an unknown subcommand. The parameter near is the parent command.
func UnknownCommand(near *cobra.Command, words []string) error {
	text := fmt.Sprintf("unknown command %q", strings.Join(words, " "))
	if near.SuggestionsMinimumDistance <= 0 {
		near.SuggestionsMinimumDistance = 2 // cobra's default
	}
	if alike := near.SuggestionsFor(words[0]); len(alike) > 0 {
		slices.Sort(alike)
		return fmt.Errorf("%s; did you mean %s?", text, strings.Join(slices.Compact(alike), " or "))
	}
	return fmt.Errorf("%s; see: %s --help", text, near.CommandPath())
}

// FlagError is a function for cobra.Command.SetFlagErrorFunc. It returns a more helpful error.
func FlagError(cmd *cobra.Command, err error) error {
	// The cause is an unknown subcommand, whose flags are not flags of the root command.
	if words := cmd.Flags().Args(); cmd == cmd.Root() && len(words) > 0 {
		return UnknownCommand(cmd, words[:1])
	}
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return Value(err)
	}
	flag := "--" + missing.GetSpecifiedName()
	if missing.GetSpecifiedShortnames() != "" {
		flag = "-" + missing.GetSpecifiedName()
	}
	return fmt.Errorf("unknown flag: %s; see: %s --help", flag, cmd.CommandPath())
}

// Value adds a description of valid values to a pflag error about a flag's value. It returns other errors unchanged.
func Value(err error) error {
	var (
		needed  *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		number  *strconv.NumError
	)
	switch {
	case errors.As(err, &needed):
		text := fmt.Sprintf("--%s requires a value", needed.GetFlag().Name)
		if what := takes(needed.GetFlag()); what != "" {
			text += ": " + what
		}
		return errors.New(text)
	case errors.As(err, &invalid):
		what := invalid.Unwrap()
		if takes := takes(invalid.GetFlag()); takes != "" {
			what = errors.New("must be " + takes)
		}
		if errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange) {
			what = errors.New("the number is too large")
		}
		return fmt.Errorf("invalid value %q for --%s: %w", invalid.GetValue(), invalid.GetFlag().Name, what)
	default:
		return err
	}
}

// takes describes the valid values of a flag. It returns an empty string if any string is valid.
func takes(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "Level":
		return "a whole number"
	case "uint", "uint32", "uint64":
		return "a whole number, 0 or more"
	case "float32", "float64":
		return "a number"
	case "duration":
		return "a time with a unit, such as 30s or 2m"
	default:
		return ""
	}
}

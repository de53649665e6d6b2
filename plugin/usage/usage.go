// Package usage says what is wrong with a command line, in words for the one who typed it.
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

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments", name(cmd))
	}
	return nil
}

// MinArgs wants n arguments or more: what says which ("a code and where to write it"), example is a whole command line.
func MinArgs(n int, what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return fmt.Errorf("%s needs %s, as in: %s", name(cmd), what, example)
		}
		return nil
	}
}

// MaxArgs wants n arguments or fewer.
func MaxArgs(n int, what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("%s takes %s and no more, as in: %s", name(cmd), what, example)
		}
		return nil
	}
}

// ExactArgs wants n arguments.
func ExactArgs(n int, what, example string) cobra.PositionalArgs {
	return cobra.MatchAll(MinArgs(n, what, example), MaxArgs(n, what, example))
}

// Known wants every argument to be one of the command's ValidArgs: no roles for "foo"; there are: xid.
func Known(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if !slices.Contains(cmd.ValidArgs, arg) {
				return fmt.Errorf("no %s for %q; there are: %s", what, arg, strings.Join(cmd.ValidArgs, ", "))
			}
		}
		return nil
	}
}

// name returns the command as it is typed after `kubectl gpu-fault`.
func name(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().CommandPath()+" ")
}

// UnknownCommand returns the error for words that name no command; near is the command above it.
func UnknownCommand(near *cobra.Command, words []string) error {
	text := fmt.Sprintf("there is no command %q", strings.Join(words, " "))
	if near.SuggestionsMinimumDistance <= 0 {
		near.SuggestionsMinimumDistance = 2 // letters; cobra's own default
	}
	if alike := near.SuggestionsFor(words[0]); len(alike) > 0 {
		slices.Sort(alike)
		return fmt.Errorf("%s; did you mean %s?", text, strings.Join(slices.Compact(alike), " or "))
	}
	return fmt.Errorf("%s; see: %s --help", text, near.CommandPath())
}

// FlagError returns what cobra.Command.SetFlagErrorFunc takes.
func FlagError(cmd *cobra.Command, err error) error {
	// Which are not the root's, so that its flags are not meant
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
	return fmt.Errorf("there is no flag %s; see: %s --help", flag, cmd.CommandPath())
}

// Value says in words what a flag takes when pflag did not like what it got. Other errors come back as they are.
func Value(err error) error {
	var (
		needed  *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		number  *strconv.NumError
	)
	switch {
	case errors.As(err, &needed):
		text := fmt.Sprintf("--%s needs a value", needed.GetFlag().Name)
		if what := takes(needed.GetFlag()); what != "" {
			text += ": " + what
		}
		return errors.New(text)
	case errors.As(err, &invalid):
		what := invalid.Unwrap()
		if takes := takes(invalid.GetFlag()); takes != "" {
			what = errors.New("give " + takes)
		}
		if errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange) {
			what = errors.New("the number is too large")
		}
		return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), what)
	default:
		return err
	}
}

// takes returns what a flag of a type that has rules takes.
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
		return "a time with its unit, such as 30s or 2m"
	default:
		return ""
	}
}

package usage

import (
	"io"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// program returns a small command line with one flag of each type.
func program(args cobra.PositionalArgs) *cobra.Command {
	root := &cobra.Command{
		Use: "gpu-fault", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu-fault"},
		SilenceErrors: true, SilenceUsage: true,
	}
	run := func(*cobra.Command, []string) error { return nil }
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return UnknownCommand(cmd, args[:1])
		}
		return nil
	}
	root.Args = cobra.ArbitraryArgs
	list := &cobra.Command{Use: "list", Args: args, ValidArgs: []string{"a", "b"}, RunE: run}
	f := list.Flags()
	f.Int("count", 0, "")
	f.Uint64("seed", 0, "")
	f.Float64("speed", 0, "")
	f.Duration("interval", time.Second, "")
	f.BoolP("yes", "y", false, "")
	f.String("gpu", "", "")
	f.StringToString("map", nil, "")
	root.AddCommand(list)
	root.SetFlagErrorFunc(FlagError)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root
}

// Neither cobra's words nor Go's shine through.
func TestWhatTheUserReads(t *testing.T) {
	t.Parallel()
	const example = "kubectl gpu-fault list a"
	for name, test := range map[string]struct {
		args cobra.PositionalArgs
		line []string
		want string
	}{
		"fine": {NoArgs, []string{"list"}, ""},
		"none": {NoArgs, []string{"list", "xid-foo"}, "list takes no arguments"},
		"too few": {
			MinArgs(1, "a letter", example), []string{"list"},
			"list requires a letter, as in: kubectl gpu-fault list a",
		},
		"enough": {MinArgs(1, "a letter", example), []string{"list", "a", "b"}, ""},
		"too many": {
			MaxArgs(1, "one letter", example), []string{"list", "a", "b"},
			"list takes only one letter, as in: kubectl gpu-fault list a",
		},
		"not few enough": {
			ExactArgs(1, "one letter", example), []string{"list", "a", "b"},
			"list takes only one letter, as in: kubectl gpu-fault list a",
		},
		"not many enough": {
			ExactArgs(1, "one letter", example), []string{"list"},
			"list requires one letter, as in: kubectl gpu-fault list a",
		},
		"unknown word": {Known("roles"), []string{"list", "c"}, `no roles for "c"; supported values: a, b`},

		"unknown command": {nil, []string{"lsit"}, `unknown command "lsit"; did you mean list?`},
		"like none": {
			nil, []string{"nosuch"}, `unknown command "nosuch"; see: kubectl gpu-fault --help`,
		},
		"unknown command with flag": {
			nil, []string{"nosuch", "--foo"}, `unknown command "nosuch"; see: kubectl gpu-fault --help`,
		},

		"unknown flag": {
			nil, []string{"list", "--nosuch"}, "unknown flag: --nosuch; see: kubectl gpu-fault list --help",
		},
		"unknown letter":    {nil, []string{"list", "-z"}, "unknown flag: -z; see: kubectl gpu-fault list --help"},
		"letter in a group": {nil, []string{"list", "-yz"}, "unknown flag: -z; see: kubectl gpu-fault list --help"},
		"value missing":     {nil, []string{"list", "--count"}, "--count requires a value: a whole number"},
		"text missing":      {nil, []string{"list", "--gpu"}, "--gpu requires a value"},
		"int": {
			nil, []string{"list", "--count", "x"}, `invalid value "x" for --count: must be a whole number`,
		},
		"huge": {
			nil, []string{"list", "--count", "99999999999999999999"},
			`invalid value "99999999999999999999" for --count: the number is too large`,
		},
		"uint": {
			nil, []string{"list", "--seed", "-1"}, `invalid value "-1" for --seed: must be a whole number, 0 or more`,
		},
		"float": {nil, []string{"list", "--speed", "fast"}, `invalid value "fast" for --speed: must be a number`},
		"duration": {
			nil, []string{"list", "--interval", "5"},
			`invalid value "5" for --interval: must be a time with a unit, such as 30s or 2m`,
		},
		"bool": {
			nil, []string{"list", "--yes=perhaps"}, `invalid value "perhaps" for --yes: must be true or false`,
		},
		"other type": {
			nil, []string{"list", "--map", "x"}, `invalid value "x" for --map: x must be formatted as key=value`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := program(test.args)
			root.SetArgs(test.line)
			got := ""
			if err := root.Execute(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got    %s\nwanted %s", got, test.want)
			}
		})
	}
}

// Package expect adds --expect to commands that inject faults, and shows how the cluster reacts to a fault.
package expect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Flags holds the values of --expect, --expect-not and --within.
type Flags struct {
	expect, not []string
	within      []string
}

// DefaultWithin is long enough for detectors that poll, and for a drain.
const DefaultWithin = 5 * time.Minute

// AddFlags registers the flags, and the report formats.
func (f *Flags) AddFlags(cmd *cobra.Command, format *printer.Format) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.expect, "expect", nil,
		"Reactions of the cluster to wait for, such as cordon,drain or cordon=NVSentinel; the exit code is 2 if one does not happen")
	flags.StringSliceVar(&f.not, "expect-not", nil, "Reactions that must not happen")
	flags.StringSliceVar(&f.within, "within", nil,
		"Deadline for the reactions, counted from the fault's verification: 2m for all, or cordon=2m,drain=9m for "+
			"some (default 5m)")
	for _, name := range []string{"expect", "expect-not"} {
		_ = cmd.RegisterFlagCompletionFunc(name, completeReactions)
	}
	format.Also = append(format.Also, Formats()...)
	flags.Lookup("output").Usage =
		"Output format: json, yaml, name, wide, junit or prometheus (with --expect), or jsonpath=TEMPLATE"
}

// completeReactions completes the last word of a list.
func completeReactions(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := prefix[:strings.LastIndex(prefix, ",")+1]
	var all []cobra.Completion
	for _, k := range reaction.Kinds {
		word := string(k.Name)
		if k.Verb != "" {
			word = k.Verb
		}
		all = append(all, cobra.CompletionWithDesc(before+word, k.Meaning))
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// Given reports whether a reaction is expected.
func (f *Flags) Given() bool { return len(f.expect)+len(f.not) > 0 }

// Validate returns an error if a reaction is unknown or a flag has no effect.
func (f *Flags) Validate(format printer.Format) error {
	if !f.Given() {
		if slices.Contains(Formats(), format.Output) {
			return fmt.Errorf("-o %s requires --expect or --expect-not: this format reports whether the cluster reacted",
				format.Output)
		}
		return nil
	}
	if err := f.validateWithin(); err != nil {
		return err
	}
	expect, err := f.expectations(f.expect, false)
	if err != nil {
		return fmt.Errorf("--expect: %w", err)
	}
	not, err := f.expectations(f.not, true)
	if err != nil {
		return fmt.Errorf("--expect-not: %w", err)
	}
	for _, e := range expect {
		if slices.ContainsFunc(not, func(n experiment.Expectation) bool {
			return n.Reaction == e.Reaction && n.By == e.By
		}) {
			return fmt.Errorf("%s is expected both to happen and not to happen", e.Reaction)
		}
	}
	return nil
}

// expectations parses words such as cordon and cordon=NVSentinel.
func (f *Flags) expectations(words []string, not bool) ([]experiment.Expectation, error) {
	limits, err := f.limits()
	if err != nil {
		return nil, err
	}
	var all []experiment.Expectation
	for _, word := range words {
		name, by, given := strings.Cut(strings.TrimSpace(word), "=")
		if given && by == "" {
			return nil, fmt.Errorf("%q has no name after =: use REACTION=NAME, with the name of a system or a field manager", word)
		}
		known, err := reaction.Parse(name)
		if err != nil {
			return nil, err
		}
		e := experiment.Expectation{Name: string(known), Reaction: string(known), By: by}
		if slices.ContainsFunc(all, func(a experiment.Expectation) bool {
			return a.Reaction == e.Reaction && a.By == e.By
		}) {
			return nil, fmt.Errorf("%s is specified twice", word)
		}
		if by != "" {
			e.Name += " by " + by
		}
		if not {
			e.For = scenario.Duration(limits.of(known))
		} else {
			e.Within = scenario.Duration(limits.of(known))
		}
		all = append(all, e)
	}
	return all, nil
}

// Needs returns the permissions for observing the cluster.
func (f *Flags) Needs() []fault.Permission {
	if !f.Given() {
		return nil
	}
	return Permissions()
}

// Check returns an error if a required permission for observing the cluster is missing. unseen describes what is not
// observed because an optional permission is missing.
func Check(ctx context.Context, client kubernetes.Interface) (unseen []string, err error) {
	missing, optional, err := fault.Missing(ctx, client, Permissions(), fault.DefaultParallel)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, &fault.PermissionError{Missing: missing, Command: "kubectl gpu-fault rbac print --for watch"}
	}
	for _, p := range optional {
		unseen = append(unseen,
			fmt.Sprintf("Warning: NVSentinel's circuit breaker is not observed: you are not allowed to %s", p))
	}
	return unseen, nil
}

// Permissions returns the permissions for observing the cluster.
func Permissions() []fault.Permission {
	var all []fault.Permission
	for _, resource := range []string{"nodes", "pods", "events"} {
		for _, verb := range []string{"list", "watch"} {
			all = append(all, fault.Permission{Verb: verb, Resource: resource})
		}
	}
	return append(all,
		fault.Permission{Verb: "list", Resource: "configmaps", Optional: true},
		fault.Permission{Verb: "watch", Resource: "configmaps", Optional: true})
}

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agext/levenshtein"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor/report"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// options holds the flags and arguments of `doctor`.
type options struct {
	nodes                          []string
	selector                       string
	allGPUNodes, apiOnly, noImages bool
	bundle, fromBundle             string

	checks              []string
	minSeverity, failOn string
	gated, allowUnknown bool // whether --fail-on was specified, and whether --allow-unknown was
	ignoreFile          string
	signatureFile       string
	ignoreInjected      bool
	since               time.Duration
	namespace           string // value of -n, if specified
	output, html        string

	fix       string
	dryRun    dryrun.Mode
	fixObject string // selects one of several root causes: the part after "=" in --fix
	yes       bool
	parallel  int
	pods      podflags.Flags

	ignore []engine.Ignore         // of ignoreFile
	known  []*signatures.Signature // of signatureFile
}

// never is the only value of --fail-on that is not a severity.
const never = "never"

// defaultParallel is high enough for pods to start in parallel, but low enough not to overload registries.
const defaultParallel = 10

func newOptions() *options {
	return &options{
		minSeverity: string(finding.Info), failOn: string(finding.Error), dryRun: "none", parallel: defaultParallel,
		pods: podflags.New(),
	}
}

const jsonPath = "jsonpath="

func formats() []string { return []string{"json", "yaml", "name", "wide", "junit", "sarif", jsonPath} }

// complete validates the options without a cluster, and reads the ignore file. changed reports whether a flag was
// specified.
func (o *options) complete(changed func(flag string) bool) error {
	o.fix = strings.TrimPrefix(o.fix, "finding/") // the form that -o name prints
	fix, object, named := strings.Cut(o.fix, "=")
	o.fix, o.fixObject = fix, object
	if named && object == "" {
		return fmt.Errorf("--fix %s=: the object name is empty; is a variable unset?", fix)
	}
	o.gated = changed("fail-on")
	err := errors.Join(o.checkSource(changed), o.checkFix(changed), o.checkChoices(), o.checkFiles(), o.pods.Validate())
	if err != nil {
		return err
	}
	if o.ignore, err = readIgnore(o.ignoreFile); err != nil {
		return err
	}
	o.known, err = readSignatures(o.signatureFile)
	return err
}

// checkSource rejects mutually exclusive sources of evidence.
func (o *options) checkSource(changed func(string) bool) error {
	ways := 0
	for _, given := range []bool{len(o.nodes) > 0, o.selector != "", o.allGPUNodes, o.apiOnly} {
		if given {
			ways++
		}
	}
	for _, name := range o.nodes {
		if strings.TrimSpace(name) == "" {
			return errors.New("a node name is empty; is a variable unset?")
		}
	}
	switch {
	case o.bundle != "" && o.fromBundle != "":
		return errors.New(
			"--bundle and --from-bundle are mutually exclusive: one writes the evidence, the other reads it",
		)
	case o.fromBundle != "" && ways > 0:
		return errors.New(
			"--from-bundle reads no nodes: remove node names, -l, --all-gpu-nodes and --api-only",
		)
	case o.fromBundle != "" && o.noImages:
		return errors.New("--from-bundle queries no registry: remove --no-images")
	case ways > 1:
		return errors.New("node names, -l, --all-gpu-nodes and --api-only are mutually exclusive")
	case o.selector == "" && changed("selector"):
		return errors.New("-l: the selector is empty; is a variable unset?")
	case len(o.nodes) == 0 && changed("node"):
		return errors.New("--node: the name is empty; is a variable unset?")
	case len(o.checks) == 0 && changed("checks"):
		return errors.New("--checks: an ID is empty; is a variable unset?")
	case o.parallel < 1:
		return fmt.Errorf("invalid value %d for --parallel: must be 1 or more", o.parallel)
	case o.since < 0:
		return fmt.Errorf("invalid value %s for --since: must be a duration, such as 2h", o.since)
	}
	return nil
}

func (o *options) checkFix(changed func(string) bool) error {
	switch {
	case o.fix == "" && changed("fix"):
		return errors.New("--fix: specify the ID of a root cause, such as " + fixable()[0])
	case o.fix == "" && changed("dry-run"):
		return errors.New("--dry-run requires --fix")
	case o.fix == "" && o.yes:
		return errors.New("--yes requires --fix")
	case o.fix == "":
		return nil
	case o.fromBundle != "":
		return errors.New("--fix requires a cluster: remove --from-bundle")
	case o.html != "" || o.output != "":
		return errors.New("--fix prints its changes: remove --html and -o")
	case len(o.checks) > 0 || o.ignoreFile != "":
		return errors.New("--fix runs all checks: remove --checks and --ignore-file")
	}
	return errors.Join(o.dryRun.Validate(dryrun.Modes()...), known("--fix", []string{o.fix}))
}

func (o *options) checkChoices() error {
	severities := []string{string(finding.Info), string(finding.Warning), string(finding.Error)}
	switch {
	case !slices.Contains(severities, o.minSeverity):
		return fmt.Errorf("--min-severity=%s: must be info, warning or error", o.minSeverity)
	case !slices.Contains([]string{string(finding.Error), string(finding.Warning), never}, o.failOn):
		return fmt.Errorf("--fail-on=%s: must be error, warning or never", o.failOn)
	case o.allowUnknown && (!o.gated || o.failOn == never):
		return errors.New(
			"--allow-unknown requires --fail-on error or warning",
		)
	case o.minSeverity == string(finding.Error) && o.failOn == string(finding.Warning):
		return errors.New("--fail-on warning conflicts with --min-severity error, which hides warnings")
	case slices.Contains([]string{"junit", "sarif"}, o.output):
		return known("--checks", o.checks)
	}
	return errors.Join(known("--checks", o.checks), o.checkFormat())
}

func (o *options) checkFormat() error {
	if err := o.format().Validate(); err != nil {
		if strings.HasPrefix(o.output, jsonPath) {
			return err
		}
		return fmt.Errorf("unknown output format %q: must be json, yaml, name, wide, junit, sarif or jsonpath=TEMPLATE",
			o.output)
	}
	return nil
}

func (o *options) format() printer.Format { return printer.Format{Output: o.output} }

// checkFiles checks in advance whether the output files can be written.
func (o *options) checkFiles() error {
	for flag, file := range map[string]string{"--bundle": o.bundle, "--html": o.html} {
		if file == "" {
			continue
		}
		dir := filepath.Dir(file)
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return fmt.Errorf("%s %s: directory %q does not exist", flag, file, dir)
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			return fmt.Errorf("%s %s: is a directory; specify a file in it", flag, file)
		}
	}
	if o.bundle != "" && filepath.Clean(o.bundle) == filepath.Clean(o.html) {
		return errors.New("--bundle and --html specify the same file")
	}
	return nil
}

// startsNoPod reports whether only the API is read, which is the case with --api-only and in a dry run.
func (o *options) startsNoPod() bool { return o.apiOnly || o.fix != "" && o.dryRun != "none" }

// needsNodes reports whether one of the chosen checks reads nodes.
func (o *options) needsNodes() bool {
	return slices.ContainsFunc(o.chosen(),
		func(c engine.Check) bool { return slices.Contains(c.Needs, engine.NeedNode) })
}

// chosen returns the selected checks.
func (o *options) chosen() []engine.Check {
	all := doctor.Checks()
	if len(o.checks) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c engine.Check) bool {
		return !slices.ContainsFunc(o.checks, func(pattern string) bool { return report.Match(pattern, c.ID) })
	})
}

// known returns an error with suggestions if a pattern matches no check.
func known(flag string, patterns []string) error {
	var ids []string
	for _, c := range doctor.Checks() {
		ids = append(ids, c.ID)
	}
	for _, pattern := range patterns {
		if slices.ContainsFunc(ids, func(id string) bool { return report.Match(pattern, id) }) {
			continue
		}
		if strings.TrimSpace(pattern) == "" {
			return fmt.Errorf("%s: an ID is empty; is a variable unset?", flag)
		}
		if family, wild := strings.CutSuffix(pattern, ".*"); wild {
			if like := nearest(family, families(ids)); like != "" {
				return fmt.Errorf("%s: no check matches %q; did you mean '%s.*'?", flag, pattern, like)
			}
			return fmt.Errorf("%s: no check matches %q; families of checks: %s", flag, pattern,
				strings.Join(families(ids), ", "))
		}
		if like := nearest(pattern, ids); like != "" {
			return fmt.Errorf("%s: unknown check %q; did you mean %s?", flag, pattern, like)
		}
		return fmt.Errorf("%s: unknown check %q; see: kubectl gpu-fault doctor checks", flag, pattern)
	}
	return nil
}

// families returns the families of check IDs, which are the parts before the dot.
func families(ids []string) []string {
	var all []string
	for _, id := range ids {
		if family, _, _ := strings.Cut(id, "."); !slices.Contains(all, family) {
			all = append(all, family)
		}
	}
	return all
}

// nearest returns the most similar word, or "" if none is similar.
func nearest(word string, all []string) string {
	best, least := "", len(word)/2+1
	for _, candidate := range all {
		if len(word) > 2 && strings.HasPrefix(candidate, word) {
			return candidate // word is a prefix
		}
	}
	for _, candidate := range all {
		_, bare, _ := strings.Cut(candidate, ".") // the family may be missing or wrong
		if d := min(levenshtein.Distance(word, candidate, nil), levenshtein.Distance(word, bare, nil)+1); d < least {
			best, least = candidate, d
		}
	}
	return best
}

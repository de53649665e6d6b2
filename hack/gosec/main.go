// Command gosec looks for insecure code, with the rules of github.com/securego/gosec. It is a program of its own since gosec's drags in the
// clients of language models, for a feature that nobody here uses; and to keep the exceptions with their reasons in one place, and none too many.
package main

import (
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/securego/gosec/v2"
	"github.com/securego/gosec/v2/rules"
	"golang.org/x/tools/go/packages"
)

func main() {
	if err := check(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gosec:", err)
		os.Exit(1)
	}
}

// check analyses the packages of patterns, and prints what no exception excuses.
func check(out io.Writer, patterns []string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	// All at once, as gosec's own program does not: it asks the go command about each package by itself, for minutes.
	loaded, err := packages.Load(&packages.Config{Mode: gosec.LoadMode}, patterns...)
	if err != nil {
		return fmt.Errorf("load the packages: %w", err)
	}
	if packages.PrintErrors(loaded) > 0 {
		return fmt.Errorf("the packages do not compile")
	}
	// Suppressions in the code are not heard: they would give no reason here.
	config := gosec.NewConfig()
	config.SetGlobal(gosec.Nosec, "true")
	analyzer := gosec.NewAnalyzer(config, false, true, false, 1, log.New(io.Discard, "", 0))
	list := rules.Generate(false, rules.NewRuleFilter(true, slices.Collect(maps.Keys(notForUs))...))
	analyzer.LoadRules(list.RulesInfo())
	for _, p := range loaded {
		analyzer.CheckRules(p)
	}
	issues, metrics, failed := analyzer.Report()
	for file, errs := range failed {
		return fmt.Errorf("%s was not understood: %v", file, errs)
	}
	used, bad := map[int]bool{}, 0
	for _, found := range issues {
		file, err := filepath.Rel(root, found.File)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(exceptions, func(e exception) bool {
			return e.rule == found.RuleID && (file == e.path || strings.HasPrefix(file, e.path+"/"))
		})
		if i >= 0 {
			used[i] = true
			continue
		}
		bad++
		fmt.Fprintf(out, "%s:%s: %s: %s\n", file, found.Line, found.RuleID, found.What)
	}
	for i, e := range exceptions {
		if !used[i] {
			bad++
			fmt.Fprintf(out, "hack/gosec/exceptions.go: %s in %s is not found any more: delete the exception\n", e.rule, e.path)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d findings", bad)
	}
	fmt.Fprintf(out, "gosec: %d files, %d exceptions\n", metrics.NumFiles, len(exceptions))
	return nil
}

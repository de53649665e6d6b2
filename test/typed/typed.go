// Package typed finds the commands of kubectl gpu-fault in what users are told to type: examples of help texts, and
// pages.
package typed

import (
	"fmt"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// Commands returns the arguments behind `kubectl gpu-fault` of each such command in a script, as a shell would hand
// them over, also of those in pipes, loops and substitutions. Variables and substitutions count as "x".
func Commands(script string) ([][]string, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, fmt.Errorf("no shell can read it: %w", err)
	}
	var all [][]string
	syntax.Walk(file, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			return true
		}
		var words []string
		for _, word := range call.Args {
			words = append(words, literal(word))
		}
		if len(words) > 1 && words[0] == "kubectl" && words[1] == "gpu-fault" {
			all = append(all, words[2:])
		}
		return true
	})
	return all, nil
}

// literal returns a word without its quotes.
func literal(word *syntax.Word) string {
	const unknown = "x"
	runs := false
	syntax.Walk(word, func(node syntax.Node) bool {
		switch node.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst:
			runs = true
		}
		return !runs
	})
	if runs { // which nobody does here
		return unknown
	}
	text, err := expand.Literal(&expand.Config{Env: expand.FuncEnviron(func(string) string { return unknown })}, word)
	if err != nil {
		return unknown
	}
	return text
}

// Scripts returns the parts of a page of Markdown that are to be typed: blocks of code marked as sh, and of other
// blocks the lines that begin with kubectl gpu-fault, behind the prompt where there is one.
func Scripts(page string) []string {
	var scripts []string
	var script []string
	fence, lines := "", strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch mark, ok := strings.CutPrefix(line, "```"); {
		case ok && fence == "":
			fence = "```" + mark
		case ok:
			scripts = append(scripts, strings.Join(script, "\n"))
			fence, script = "", nil
		case fence == "```sh":
			script = append(script, line)
		case fence != "" && fence != "```text" || fence == "" && strings.HasPrefix(line, "    "):
			command := strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			if !strings.HasPrefix(command, "kubectl gpu-fault ") {
				continue
			}
			for strings.HasSuffix(command, `\`) && i+1 < len(lines) {
				i++
				command += "\n" + lines[i]
			}
			scripts = append(scripts, command)
		}
	}
	return scripts
}

// quoted is code within a line.
var quoted = regexp.MustCompile("`([^`]+)`")

// InTables returns the commands in the tables of a page, in the order of the page.
func InTables(page string) []string {
	var commands []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for _, code := range quoted.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(code[1], "kubectl gpu-fault ") {
				commands = append(commands, code[1])
			}
		}
	}
	return commands
}

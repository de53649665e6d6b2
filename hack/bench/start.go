package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// startMore is the maximum additional start time of a command compared with version, in milliseconds.
const startMore = 30

// commandLine matches a row of the list of commands.
var commandLine = regexp.MustCompile(`(?m)^\| \[([a-z ]+)\]\(`)

// offline are commands that work without a cluster.
var offline = []string{
	"xid list", "xid explain 79", "cuda profiles", "doctor checks", "doctor signatures",
	"doctor explain rt.wrong-instance",
	"scenario list", "scenario show xid-79", "scenario lint pkg/scenario/packs/xid-79.yaml", "run --list",
	"run xid-detection --explain", "run export xid-detection --node a", "rbac print --for xid", "image build",
	"completion bash", "completion zsh", "completion fish", "completion powershell", "__complete xid --",
}

// measureStart measures how long the help of every command takes, and how long every command that needs no cluster
// takes, and compares these times with the time that the version command takes. The rows are those for the slowest
// help, the slowest command, and all that exceed the limit. The figures are the best of the rounds: a start takes so
// little time that other load on the machine would dominate a median.
func (b *bench) measureStart(ctx context.Context) ([]row, error) {
	page, err := os.ReadFile("docs/commands/README.md")
	if err != nil {
		return nil, err
	}
	var helps []string
	for _, m := range commandLine.FindAllStringSubmatch(string(page), -1) {
		helps = append(helps, m[1]+" --help")
	}
	if len(helps) < 40 {
		return nil, errors.New("docs/commands/README.md does not list the commands")
	}
	var all []row
	for _, group := range [][]string{helps, offline} {
		rows, err := b.starts(ctx, group)
		if err != nil {
			return nil, err
		}
		for i, r := range rows {
			if i == 0 {
				r.What = fmt.Sprintf("start: %s, slowest of %d", r.What, len(rows))
			} else if r.OK {
				break
			}
			all = append(all, r)
		}
	}
	memory, err := b.memory(ctx, "version --client", "kubectl version --client", []string{"version", "--client"},
		[]string{"version", "--client"})
	return append(all, memory), err
}

// starts returns a row for each command line, slowest first. It runs the version command before each command line.
func (b *bench) starts(ctx context.Context, lines []string) ([]row, error) {
	took := func(line string) (float64, error) {
		start := time.Now()
		_, err := output(ctx, b.plugin, strings.Fields(line)...)
		return time.Since(start).Seconds(), err
	}
	ours, version := map[string]sample{}, sample{}
	for range b.rounds {
		for _, line := range lines {
			v, err := took("version --client")
			if err != nil {
				return nil, err
			}
			t, err := took(line)
			if err != nil {
				return nil, err
			}
			version, ours[line] = append(version, v), append(ours[line], t)
		}
	}
	var rows []row
	for line, times := range ours {
		r := compared(line, "ms", times, "version", version)
		r.Median, r.Other = r.Min, slices.Min(version)*1000
		rows = append(rows, r.atMost(startMore))
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(b.Median, a.Median) })
	return rows, nil
}

package plugin

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

var (
	inBackquotes = regexp.MustCompile("`([^`]+)`")
	flagWord     = regexp.MustCompile(`(?:^|[\s(\[])--([a-z][a-z0-9-]*)`)
)

// flagsOf returns the names of all flags of a command, of those below it, and of all commands.
func flagsOf(cmd *cobra.Command) map[string]bool {
	names := map[string]bool{"help": true}
	add := func(f *pflag.Flag) { names[f.Name] = true }
	cmd.Root().PersistentFlags().VisitAll(add)
	for _, c := range withSubcommands(cmd) {
		c.Flags().VisitAll(add)
	}
	return names
}

// prose returns a page without its blocks of code, by paragraphs.
func prose(page string) []string {
	var kept []string
	fenced := false
	for line := range strings.Lines(page) {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if !fence && !fenced && !strings.HasPrefix(line, "    ") {
			kept = append(kept, line)
		}
	}
	return strings.Split(strings.Join(kept, ""), "\n\n")
}

// unknownFlags returns the flags in the prose of a page that the named command does not have, or no command where none
// is named.
func unknownFlags(root *cobra.Command, page string) (unknown []string, count int) {
	for _, paragraph := range prose(page) {
		for _, quoted := range inBackquotes.FindAllStringSubmatch(paragraph, -1) {
			words := strings.Fields(quoted[1])
			if len(words) == 0 {
				continue
			}
			switch {
			case len(words) > 1 && words[0] == "kubectl" && words[1] == "gpu-fault":
				words = words[2:]
			case words[0] == "kubectl", strings.Contains(words[0], ".py"): // flags of others
				continue
			}
			cmd := root
			if found, _, err := root.Find(words); err == nil {
				cmd = found
			}
			known := flagsOf(cmd)
			for _, flag := range flagWord.FindAllStringSubmatch(quoted[1], -1) {
				if count++; !known[flag[1]] {
					unknown = append(unknown, quoted[1]+": --"+flag[1])
				}
			}
		}
	}
	return unknown, count
}

// TestFlagsOfPagesExist holds that a flag which a page names in a sentence is one of the command's.
func TestFlagsOfPagesExist(t *testing.T) {
	t.Parallel()
	root, total := NewCommand(genericiooptions.NewTestIOStreamsDiscard()), 0
	pages := []string{"../README.md"}
	err := filepath.WalkDir("../docs", func(path string, entry fs.DirEntry, err error) error {
		// Which quotes commands of others
		if err == nil && filepath.Ext(path) == ".md" && entry.Name() != "messages.md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unknown, count := unknownFlags(root, string(text))
		for _, flag := range unknown {
			t.Errorf("%s: %s does not exist", path, flag)
		}
		total += count
	}
	if total < 200 {
		t.Errorf("found only %d flags", total)
	}
}

func TestUnknownFlags(t *testing.T) {
	t.Parallel()
	const page = "The secrets of `--pull-secret`, and `xid 79 NODE --image-pull-secret x`; `kubectl get --raw /`,\n`list --fix` and `kubectl gpu-fault doctor\n--fix ID`.\n\n" +
		"```\n`--no`\n```\n\n    `--no`\n"
	unknown, count := unknownFlags(NewCommand(genericiooptions.NewTestIOStreamsDiscard()), page)
	if got := strings.Join(unknown, "; "); count != 4 || got != "--pull-secret: --pull-secret; list --fix: --fix" {
		t.Errorf("%d flags, unknown: %s", count, got)
	}
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const notesName = "release-notes.md"

// verbs are the headings of the release notes in order, with the first words of the commit subjects that belong under
// each heading.
var verbs = []struct {
	heading string
	words   []string
}{
	{"xid", []string{"xid", "kmod"}},
	{"cuda", []string{"cuda", "shim", "cudafault"}},
	{"runtime", []string{"runtime", "containerd"}},
	{"doctor", []string{"doctor", "snapshot"}},
	{"scenario", []string{"scenario", "exercise", "workload", "objects", "recorder"}},
	{"list, revert, leftovers", []string{"list", "revert", "leftovers", "fault", "ledger"}},
	{"image, rbac, completion", []string{"image", "rbac", "completion", "version", "krew", "release"}},
	{"Documentation", []string{"readme", "docs"}},
	{
		"Tests and upkeep",
		[]string{"test", "tests", "hack", "ci", "lint", "go.mod", "makefile", "house", "bench", "scale"},
	},
	{"Everything else", nil},
}

// notes writes the release notes: the commits since the previous release, grouped by verb, and instructions to verify
// the download.
func (r release) notes(ctx context.Context, staged string) error {
	before, err := git(ctx, "describe", "--tags", "--abbrev=0", "--match=v*", "--exclude=*-*", "HEAD^")
	commits := before + "..HEAD"
	if err != nil { // no previous release exists
		before, commits = "", "HEAD"
	}
	log, err := git(ctx, "log", "--no-merges", "--format=%s", commits)
	if err != nil {
		return err
	}
	goVersion, err := output(exec.CommandContext(ctx, "go", "env", "GOVERSION"))
	if err != nil {
		return err
	}
	text := renderNotes(r.version, before, r.commit, goVersion, strings.Split(log, "\n"))
	return os.WriteFile(filepath.Join(staged, notesName), []byte(text), 0o644)
}

func renderNotes(version, before, commit, goVersion string, subjects []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# kubectl gpu-fault %s\n\nCommit %s", version, commit)
	if before != "" {
		fmt.Fprintf(&b, "; changes since %s", before)
	}
	b.WriteString(".\n")
	grouped := map[string][]string{}
	for _, subject := range subjects {
		heading, text := classify(subject)
		if text != "" {
			grouped[heading] = append(grouped[heading], text)
		}
	}
	for _, v := range verbs {
		changes := grouped[v.heading]
		if len(changes) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", v.heading)
		for _, c := range slices.Compact(changes) {
			fmt.Fprintf(&b, "- %s\n", c)
		}
	}
	fmt.Fprintf(&b, `
## Verify the download

    sha256sum --check --ignore-missing %s

With %s, a build of the same commit produces the same files, byte for byte: `+"`make release VERSION=%s`"+`. The dependencies of each program
are listed in its .cdx.json file (CycloneDX).
`, checksums, goVersion, version)
	return b.String()
}

var prefixed = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9./, -]{0,40}): (.+)$`)

// classify returns the heading for a commit and its text. If a prefix has several words, the first one determines the
// heading.
func classify(subject string) (heading, text string) {
	last := verbs[len(verbs)-1].heading
	m := prefixed.FindStringSubmatch(subject)
	if m == nil {
		return last, subject
	}
	word := strings.ToLower(
		cmp.Or(strings.FieldsFunc(m[1], func(c rune) bool { return strings.ContainsRune(" ,/", c) })[0], m[1]),
	)
	for _, v := range verbs {
		if slices.Contains(v.words, word) {
			if strings.EqualFold(m[1], v.heading) {
				return v.heading, m[2]
			}
			return v.heading, subject
		}
	}
	return last, subject
}

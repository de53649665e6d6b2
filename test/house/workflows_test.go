package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pinned is an action at a commit, with its version as a comment, or a workflow of this repository.
var pinned = regexp.MustCompile(`^(\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d\S*)$`)

// byTag are the actions that are not pinned by commit, with the reason.
var byTag = map[string]string{
	"rajatjindal/krew-release-bot@v0.0.51": "opens the pull request at krew's index, in a job of its own that has no secret and only reads the repository",
}

// TestActionsArePinnedByCommit: whoever moves a tag of an action runs no code in our workflows.
func TestActionsArePinnedByCommit(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../.github/workflows/*.y*ml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	actions, err := filepath.Glob("../../.github/actions/*/action.yml")
	if err != nil || len(actions) < 1 {
		t.Fatalf("%q, %v", actions, err)
	}
	files = append(files, actions...)
	used := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			action, found := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "- "), "uses: ")
			if !found {
				continue
			}
			used[action] = true
			if !pinned.MatchString(action) && byTag[action] == "" {
				t.Errorf("%s:%d: %s: pin it by commit, with the version as a comment", file, i+1, action)
			}
		}
	}
	for action := range byTag {
		if !used[action] {
			t.Errorf("%s is an exception, and no workflow uses it", action)
		}
	}
}

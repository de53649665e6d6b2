package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// fieldCase is an incident from a public thread, reconstructed by people who had not seen doctor, before doctor
// examined it.
type fieldCase struct {
	root     []string // what doctor names, with the signature: "dp.not-running/cdi-hook-missing"
	first    string   // the verdict of the first try: right, partly, symptom, wrong or silent
	open     string   // what doctor still misses
	snapshot *snapshot.Snapshot
}

func readField(t *testing.T, path string) fieldCase {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c fieldCase
	truth := false
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "truth":
			truth = true
		case "root":
			c.root = strings.Fields(value)
		case "first":
			c.first, _, _ = strings.Cut(value, " ")
		case "open":
			c.open = value
		}
	}
	if !truth || len(c.root) == 0 && c.open == "" {
		t.Fatalf("%s: the comment must have the truth, and the root or what is open", path)
	}
	tree, err := txtar.FS(archive)
	if err != nil {
		t.Fatal(err)
	}
	if c.snapshot, err = snapshot.Read(tree); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if c.snapshot.Meta.Created.IsZero() {
		c.snapshot.Meta.Created = toldAt()
	}
	snapshot.Redact(c.snapshot) // doctor sees nothing else
	return c
}

// TestField verifies what doctor learned from public threads. A case that was graded as correct by a judge, who alone
// knew the truth, must keep its root causes. The log contains the grades of the first run, which docs/doctor.md
// publishes.
func TestField(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "field", "*.txtar"))
	if err != nil || len(paths) < 100 {
		t.Fatalf("%d cases: %v", len(paths), err)
	}
	first, right, found := map[string]int{}, 0, map[string]bool{}
	for i, path := range paths {
		if testing.Short() && i%4 != 0 {
			continue // `make test-doctor` and the whole corpora examine all
		}
		c := readField(t, path)
		first[c.first]++
		if c.open == "" {
			right++
		}
		report := Examine(c.snapshot, Options{})
		got := fieldRoots(report)
		if len(c.root) > 0 && !slices.Equal(got, c.root) {
			t.Errorf("%s: the roots are %v, want %v\n%s", filepath.Base(path), got, c.root, describe(report))
		}
		for _, f := range report.Items {
			found[f.ID] = true
			if f.Confidence == finding.Certain && f.Signature != "" {
				t.Errorf("%s: %s is certain, and only a message says so", filepath.Base(path), f.ID)
			}
		}
	}
	if !testing.Short() {
		everyCheckHasACluster(t, found)
	}
	t.Logf("field: right %d of %d; at the first try %v", right, len(paths), first)
}

// everyCheckHasACluster verifies that each check is tested with a complete cluster in which it reports a cause or a
// consequence. found contains the checks with findings in field/.
func everyCheckHasACluster(t *testing.T, found map[string]bool) {
	t.Helper()
	for _, s := range readCorpus(t, "positive") {
		for _, f := range Examine(s.snapshot, Options{}).Items {
			found[f.ID] = true
		}
	}
	// Checks without a cluster that predate this rule. They are covered only by their own tests.
	without := []string{
		"hw.recovery-action", "rt.gke-config-source", "rt.no-inotify", "rt.option-misplaced",
		"rt.runtime-type", "rt.shim-skew", "dra.slice-stale", "fault.recorded", "wl.cuda-preload",
	}
	for _, c := range Checks() {
		switch has := found[c.ID]; {
		case !has && !slices.Contains(without, c.ID):
			t.Errorf("%s finds nothing in any cluster: add one to testdata/positive", c.ID)
		case has && slices.Contains(without, c.ID):
			t.Errorf("%s has a cluster now: remove it from the list", c.ID)
		}
	}
}

// fieldRoots returns the distinct root causes with severity warning or higher, with their signatures, sorted.
func fieldRoots(r Report) []string {
	ids := []string{}
	for _, f := range r.Roots() {
		if f.Severity != finding.Info {
			ids = append(ids, strings.TrimSuffix(f.ID+"/"+f.Signature, "/"))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// corpusReport is the environment variable with the name of a file for the summary.
const corpusReport = "DOCTOR_REPORT"

// sample is a snapshot in testdata/{positive,negative}: a cluster as described in a public report, and its problem.
type sample struct {
	name     string
	roots    []string // of a positive sample, sorted
	snapshot *snapshot.Snapshot
}

// TestCorpus verifies the main purpose of doctor: for a broken cluster, it reports exactly the root cause, with the
// symptoms grouped under it, and for a healthy cluster, it reports nothing. Quotations must be in the evidence. If no
// node was read, doctor may report less, but no other cause.
func TestCorpus(t *testing.T) {
	positive := readCorpus(t, "positive")
	negative := slices.Concat(readCorpus(t, "negative"), readCorpus(t, "healthy"))
	right, alarms := 0, 0
	for _, s := range positive {
		t.Run("positive/"+s.name, func(t *testing.T) {
			report := Examine(s.snapshot, Options{})
			checkQuotes(t, s, report)
			if got := corpusRoots(report); !slices.Equal(got, s.roots) {
				t.Errorf("%s: the roots are %v, want %v\n%s", s.name, got, s.roots, describe(report))
				return
			}
			right++
			blind := Examine(withoutHosts(s.snapshot), Options{})
			for _, id := range corpusRoots(blind) {
				if !slices.Contains(s.roots, id) &&
					!slices.ContainsFunc(symptoms(), func(pattern string) bool { return engine.Matches(pattern, id) }) {
					t.Errorf("%s: from the API alone it is %s, and it is %v\n%s", s.name, id, s.roots, describe(blind))
				}
			}
		})
	}
	for _, s := range negative {
		t.Run("negative/"+s.name, func(t *testing.T) {
			report := Examine(s.snapshot, Options{})
			checkQuotes(t, s, report)
			blind := Examine(withoutHosts(s.snapshot), Options{})
			if len(corpusRoots(report))+len(corpusRoots(blind)) == 0 {
				return
			}
			alarms++
			t.Errorf("%s is healthy, and doctor warns of %v, and from the API alone of %v\n%s%s", s.name,
				corpusRoots(report), corpusRoots(blind),
				describe(report), describe(blind))
		})
	}
	summary := fmt.Sprintf("roots right %d of %d, false alarms %d of %d", right, len(positive), alarms, len(negative))
	t.Log(summary)
	if path := os.Getenv(corpusReport); path != "" {
		if err := os.WriteFile(path, []byte(summary+"\n"), 0o644); err != nil {
			t.Errorf("write the summary: %v", err)
		}
	}
}

// withoutHosts returns the snapshot as collected with --api-only.
func withoutHosts(s *snapshot.Snapshot) *snapshot.Snapshot {
	apiOnly := *s
	apiOnly.Hosts, apiOnly.Meta.APIOnly = nil, true
	return &apiOnly
}

// symptoms returns the findings that may be reported for a broken cluster whose cause is not visible.
func symptoms() []string {
	return []string{
		"node.not-ready", "node.condition", "op.init-chain", "op.operand-failing", "op.clusterpolicy", "dp.not-running",
		"dp.capacity-zero", "dp.none",
		"dp.unhealthy", "dp.unhealthy-xid", "drv.not-loaded", "rt.sandbox-failed", "alloc.unexpected-admission",
		"wl.pod-failing", "wl.cuda-error",
		"net.dns", "sched.*",
	}
}

// checkQuotes verifies that each finding has a source for its evidence and a fix, and that its quotations from events
// and logs are verbatim.
func checkQuotes(t *testing.T, s sample, r Report) {
	t.Helper()
	for _, f := range r.Items {
		if len(f.Evidence) == 0 || f.Title == "" || f.Root && f.Severity != finding.Info && f.Fix.Text == "" {
			t.Errorf("%s of %s has no title, no evidence or no fix", f.ID, f.Object)
		}
		for _, e := range f.Evidence {
			if e.Source == "" || e.Text == "" || !said(s.snapshot, e) {
				t.Errorf("%s of %s quotes what nobody said: %s: %q", f.ID, f.Object, e.Source, e.Text)
			}
		}
	}
}

// said reports whether the text of an event or log is in the snapshot. Evidence from other sources has no format that
// could be compared.
func said(s *snapshot.Snapshot, e finding.Evidence) bool {
	text, _, _ := strings.Cut(e.Text, "…")
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(e.Source, "event "):
		return slices.ContainsFunc(s.Events,
			func(event corev1.Event) bool { return strings.Contains(event.Message, text) })
	case strings.HasPrefix(e.Source, "log of "):
		return slices.ContainsFunc(s.Logs, func(l snapshot.Log) bool { return strings.Contains(l.Text, text) })
	}
	return true
}

// corpusRoots returns the distinct IDs of root causes with severity warning or higher, sorted.
func corpusRoots(r Report) []string {
	ids := []string{}
	for _, f := range r.Roots() {
		if f.Severity == finding.Error || f.Severity == finding.Warning {
			ids = append(ids, f.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// describe formats all findings above Info with their evidence and consequences, for the message of a failed test.
func describe(r Report) string {
	var b strings.Builder
	for _, f := range r.Items {
		if !f.Root {
			fmt.Fprintf(&b, "  . %s of %s, because of %s\n", f.ID, f.Object, strings.Join(f.CausedBy, ", "))
			continue
		}
		if f.Severity == finding.Info {
			continue
		}
		fmt.Fprintf(&b, "  %s %s (%s) of %s: %s\n", f.Severity, f.ID, f.Confidence, f.Object, f.Title)
		for _, e := range f.Evidence {
			fmt.Fprintf(&b, "      %s: %.300q\n", e.Source, e.Text)
		}
	}
	return b.String()
}

func readCorpus(t *testing.T, kind string) []sample {
	t.Helper()
	corpora.Lock()
	defer corpora.Unlock()
	if corpora.read[kind] == nil {
		corpora.read[kind] = parseCorpus(t, kind)
	}
	all := slices.Clone(corpora.read[kind])
	for i := range all {
		all[i].snapshot = redact.Clone(all[i].snapshot)
	}
	return all
}

// corpora caches parsed snapshots, because parsing takes longer than examining them.
var corpora = struct {
	sync.Mutex
	read map[string][]sample
}{read: map[string][]sample{}}

func parseCorpus(t *testing.T, kind string) []sample {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("testdata/%s has no snapshots: %v", kind, err)
	}
	all := make([]sample, 0, len(paths))
	for _, path := range paths {
		s, err := readSample(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if (kind == "positive") != (len(s.roots) > 0) {
			t.Fatalf("%s: a positive snapshot names its root, a negative one none; it has %v", path, s.roots)
		}
		all = append(all, s)
	}
	return all
}

// toldAt is the time of snapshots that do not contain a time.
func toldAt() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

// readSample reads a snapshot and the comment at its beginning: source, root, reconstructed.
func readSample(path string) (sample, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return sample{}, err
	}
	s := sample{name: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	source, reconstructed := false, false
	for line := range strings.Lines(string(archive.Comment)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "source":
			source = true
		case "reconstructed":
			reconstructed = true
		case "root":
			s.roots = strings.Fields(value)
		}
	}
	if !source || !reconstructed {
		return sample{}, fmt.Errorf("the comment at its head must say source and reconstructed")
	}
	slices.Sort(s.roots)
	tree, err := txtar.FS(archive)
	if err != nil {
		return sample{}, err
	}
	s.snapshot, err = snapshot.Read(tree)
	if err != nil {
		return sample{}, fmt.Errorf("read the snapshot: %w", err)
	}
	for _, file := range archive.Files {
		if _, err := fs.Stat(tree, file.Name); err != nil {
			return sample{}, err
		}
	}
	if s.snapshot.Meta.Created.IsZero() {
		s.snapshot.Meta.Created = toldAt()
	}
	return s, nil
}

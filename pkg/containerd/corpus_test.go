package containerd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

const (
	// corpusEnv names folders with more configurations, separated by colons.
	corpusEnv = "CONFIGS"
	// reportEnv names a file for the result, as hack/test-containerd.sh prints it.
	reportEnv = "CORPUS_REPORT"
)

// corpus returns the real configurations: those of the folders in CONFIGS, else those beside the repository where they
// are there; and our own.
func corpus(t testing.TB) []string {
	t.Helper()
	folders := []string{filepath.Join("testdata", "nodes")}
	if beside := filepath.Join("..", "..", "..", "shared", "data", "containerd"); exists(beside) {
		folders = append(folders, beside)
	}
	for _, folder := range filepath.SplitList(os.Getenv(corpusEnv)) {
		if !exists(folder) {
			t.Fatalf("%s: there is no folder %s", corpusEnv, folder)
		}
		folders = append(folders, folder)
	}
	var files []string
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(name string, entry os.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				files = append(files, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Compact(files)
}

func exists(folder string) bool {
	_, err := os.Stat(folder)
	return err == nil
}

// Real configurations, with every handler, every mode, and the releases before and after the change of merge rules.
// Each fault is undone to the last byte, and a removed handler is all that is missing, by a decoder that knows nothing
// of our edits. Files of which none can be broken are refused with a reason.
//
// The last line is: byte-exact (file x release x mode x handler, made and undone exactly), refused (files), wrong
// (those that were not exact).
func TestCorpus(t *testing.T) {
	var report strings.Builder
	exact, refused, wrong := 0, 0, 0
	for _, name := range corpus(t) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		removed, reasons := 0, []string{}
		for _, release := range []Release{old, {2, 1, 4}, recent} {
			c := config(release, string(data))
			for _, r := range requests(c) {
				b, err := c.Break(r)
				if err != nil && r.Mode == ModeMissingHandler {
					reasons = append(reasons, err.Error())
					b, err = removal(c, r.Handler)
				}
				if err != nil {
					continue
				}
				if problem := inexact(c, b, r); problem != "" {
					wrong++
					t.Errorf("%s, containerd %s, %s of %s: %s", name, release, r.Mode, r.Handler, problem)
					fmt.Fprintf(&report, "wrong    %s, containerd %s, %s of %s: %s\n", filepath.Base(name), release,
						r.Mode, r.Handler, problem)
					continue
				}
				exact++
				if r.Mode == ModeMissingHandler {
					removed++
				}
			}
		}
		if removed == 0 {
			refused++
			if len(reasons) == 0 {
				t.Errorf("%s: no handler can be removed, and nothing says why", name)
				reasons = []string{"no reason"}
			}
			fmt.Fprintf(&report, "refused  %s: %s\n", filepath.Base(name),
				strings.ReplaceAll(reasons[len(reasons)-1], "\n", " "))
		}
	}
	fmt.Fprintf(&report, "byte-exact %d, refused %d, wrong %d\n", exact, refused, wrong)
	if exact == 0 || wrong > 0 {
		t.Errorf("the corpus has %d exact and %d wrong faults", exact, wrong)
	}
	if name := os.Getenv(reportEnv); name != "" {
		if err := os.WriteFile(name, []byte(report.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Log("\n" + report.String())
}

// removal returns the edit that removes a handler where Break does not want it for what it would mean: runc is built
// in, or CRI does not load as it is. The edit must be exact all the same.
func removal(c *Config, handler string) (*Broken, error) {
	f := c.Files[0]
	if refused := Refuse(f); refused != nil {
		return nil, refused
	}
	doc, tree, err := c.parse(f)
	if err != nil {
		return nil, err
	}
	p := &plan{
		c: c, before: &effective{tree: tree}, docs: []*document{doc}, trees: []map[string]any{tree}, handler: handler,
		changes: map[int][]change{},
	}
	for _, plugin := range plugins {
		p.changes[0] = append(p.changes[0], doc.remove(handlerPath(plugin, handler))...)
	}
	edits := doc.edits(p.changes[0])
	after, err := applied(f.Data, edits)
	if err == nil && len(edits) == 0 {
		err = p.noHandler()
	}
	return &Broken{Files: []Edited{{f.Path, f.Data, after, edits}}}, err
}

// requests returns all modes with each handler that any of the tables has; at least one, for the reason.
func requests(c *Config) []Request {
	handlers := []string{}
	if tree, err := c.decode(c.Files[0].Data); err == nil {
		for _, plugin := range plugins {
			handlers = append(handlers, sortedKeys(digTable(tree, runtimesPath(plugin)...))...)
		}
	}
	slices.Sort(handlers)
	if handlers = slices.Compact(handlers); len(handlers) == 0 {
		handlers = []string{"nvidia"}
	}
	var all []Request
	for _, m := range Modes() {
		for _, h := range handlers {
			all = append(all, Request{Mode: m.Mode, Handler: h, Decoy: File{Path: "/var/lib/other/config.toml"}})
		}
	}
	return all
}

// inexact returns what is wrong with a fault; empty when nothing is.
func inexact(c *Config, b *Broken, r Request) string {
	for _, f := range b.Files {
		after, err := patch.Apply(f.Before, f.Edits)
		if err != nil || !bytes.Equal(after, f.After) {
			return fmt.Sprintf("the edits of %s do not give what they should: %v", f.Path, err)
		}
		before, err := patch.Apply(after, patch.Invert(f.Edits))
		if err != nil || !bytes.Equal(before, f.Before) {
			return fmt.Sprintf("%s is not restored: %v", f.Path, err)
		}
	}
	if r.Mode == ModeUnparsable || r.Mode == ModeDropinShadow {
		return ""
	}
	var before, after map[string]any
	now := broken(c, b, false).Files[0].Data
	if err := toml.Unmarshal(c.Files[0].Data[c.bom(c.Files[0].Data):], &before); err != nil {
		return err.Error()
	}
	if err := toml.Unmarshal(now[c.bom(now):], &after); err != nil {
		return "it does not parse any more: " + err.Error()
	}
	has := false
	for _, plugin := range plugins {
		_, was := digTable(before, runtimesPath(plugin)...)[r.Handler]
		_, is := digTable(after, runtimesPath(plugin)...)[r.Handler]
		has = has || is
		if was && !is && r.Mode != ModeMissingHandler && r.Mode != ModeWrongInstance {
			return "the handler is gone"
		}
		for _, tree := range []map[string]any{before, after} {
			if r.Mode == ModeDefaultMissing {
				delete(digTable(tree, "plugins", plugin, "containerd"), "default_runtime_name")
			} else {
				delete(digTable(tree, runtimesPath(plugin)...), r.Handler)
			}
		}
	}
	if has && (r.Mode == ModeMissingHandler || r.Mode == ModeWrongInstance) {
		return "the handler is still there"
	}
	if a, b := withoutEmpty(before), withoutEmpty(after); !same(a, b) {
		return fmt.Sprintf("more changed than the fault: %v became %v", a, b)
	}
	return ""
}

// withoutEmpty leaves out empty tables on the way to the handlers.
func withoutEmpty(tree map[string]any) map[string]any {
	for _, plugin := range plugins {
		path := runtimesPath(plugin)
		for n := len(path); n > 0; n-- {
			if table := digTable(tree, path[:n]...); table != nil && len(table) == 0 {
				delete(digTable(tree, path[:n-1]...), path[n-1])
			}
		}
	}
	return tree
}

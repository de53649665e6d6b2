package cudafault

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func TestTablesLoad(t *testing.T) {
	t.Parallel()
	if _, err := tables(); err != nil {
		t.Fatal(err)
	}
	if _, err := functionsByLayer(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range Profiles() {
		names = append(names, p.Name)
		if _, known := xid.Lookup(p.XID); p.XID != 0 && !known {
			t.Errorf("XID %d is not in the catalog", p.XID)
		}
		for _, source := range p.Evidence {
			if url := EvidenceURL(source); url == "" && !strings.HasPrefix(source, "NVIDIA Xid-Catalog") &&
				!strings.HasPrefix(source, "docs/fidelity.md: ") {
				t.Errorf("profile %s: %q is no source that can be read", p.Name, source)
			}
		}
	}
	if want := strings.Fields(
		"13 31 43 45 48 63 64 74 79 94 95 109 119 120 140 145 149 154 driver-mismatch fabric-not-ready",
	); !slices.Equal(names, want) {
		t.Errorf("profiles %v, want %v", names, want)
	}
}

// TestProfileCodes holds the profiles against what is known of each XID, which other systems have wrong: 6 for 43, 217
// for 74, 100 for a process that runs at 79, 721 for 94.
func TestProfileCodes(t *testing.T) {
	t.Parallel()
	type codes struct {
		running, fallback, fresh, nvml, nvmlInit, ecc int
		event                                         bool
		rows                                          string
	}
	for name, want := range map[string]codes{
		"13": {running: 719, event: true}, "31": {running: 700, event: true}, "43": {running: 719, event: true},
		"48": {running: 214, event: true, ecc: 1}, "74": {running: 220, event: true},
		"79": {running: 999, fresh: 100, nvml: 15}, "94": {running: 226, fallback: 214, event: true, ecc: 1},
		"95":  {running: 214, fresh: 46, nvml: 16, event: true, ecc: 1},
		"109": {running: 719, event: true}, "119": {running: 999, fresh: 999, nvml: 10, event: true},
		"145": {running: 220, event: true}, "149": {running: 220, event: true},
		"63": {event: true, rows: "remapped,pending"}, "64": {event: true, rows: "failed"}, "45": {}, "154": {},
		"fabric-not-ready": {fresh: 802}, "driver-mismatch": {fresh: 803, nvmlInit: 18},
	} {
		p, ok := NamedProfile(name)
		if got := (codes{
			p.Running, p.Fallback, p.New, p.NVML, p.NVMLInit, p.NVMLECC, p.NVMLEvent, p.NVMLRows.String(),
		}); !ok || got != want {
			t.Errorf("profile %s: %+v, want %+v", name, got, want)
		}
		if p.None() != (want == codes{}) {
			t.Errorf("profile %s: None is %v", name, p.None())
		}
	}
	if p, _ := FindProfile(94); p.MinDriver != 12080 {
		t.Errorf("226 from driver %d on, want 12080", p.MinDriver)
	}
	if _, ok := FindProfile(62); ok {
		t.Error("62 has a profile")
	}
}

func TestProfilesAreCopies(t *testing.T) {
	t.Parallel()
	Profiles()[0].Evidence[0] = "changed"
	if Profiles()[0].Evidence[0] == "changed" {
		t.Error("Profiles returns shared memory")
	}
}

func TestEvidenceURL(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"NVIDIA/NVSentinel#1475":             "https://github.com/NVIDIA/NVSentinel/issues/1475",
		"https://arxiv.org/abs/2503.11901":   "https://arxiv.org/abs/2503.11901",
		"NVIDIA Xid-Catalog.xlsx (a, b #17)": "",
	} {
		if got := EvidenceURL(source); got != want {
			t.Errorf("EvidenceURL(%q) = %q", source, got)
		}
	}
}

// What is wrong in a table is said by its line and column, and not noticed in a pod.
func TestTableErrors(t *testing.T) {
	t.Parallel()
	tabs := func(s string) string { return strings.Join(strings.Fields(s), "\t") + "\n" }
	errorsHead, nvmlHead, head := tabs(errorColumns), tabs(nvmlColumns), tabs(profileColumns)
	cuda := errorsHead + tabs("100 NO_DEVICE NoDevice no init call") + tabs("214 ECC x yes launch sync") +
		tabs("226 CONTAINED - yes launch sync")
	nvml := nvmlHead + tabs("15 GPU_IS_LOST device") + tabs("18 MISMATCH init")
	// name text running basis fallback min new basis nvml init event values surface sticky classes latency classes hang
	// evidence note
	row := tabs("94 text 226 assumed 214 12080 100 assumed 15 - yes ecc sync yes launch 1s launch peer a/b#1 note")
	if _, err := load(cuda, nvml, head+row); err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) string {
		return head +
			strings.Replace(row, strings.Join(strings.Fields(old), "\t"), strings.Join(strings.Fields(new), "\t"), 1)
	}
	for name, test := range map[string]struct{ errors, nvml, profiles, want string }{
		"order":            {cuda + tabs("2 OOM - no alloc call"), nvml, head, "not greater than"},
		"sticky":           {errorsHead + tabs("2 OOM - maybe alloc call"), nvml, head, "sticky"},
		"surface":          {errorsHead + tabs("2 OOM - no alloc soon"), nvml, head, "surface"},
		"class":            {errorsHead + tabs("2 OOM - no malloc call"), nvml, head, "malloc"},
		"code":             {errorsHead + tabs("x OOM - no alloc call"), nvml, head, "code"},
		"nvml code":        {cuda, nvmlHead + tabs("x A init"), head, "code"},
		"nvml at":          {cuda, nvmlHead + tabs("3 A end"), head, "at is"},
		"header":           {cuda, nvml, row, "columns"},
		"cells":            {cuda, nvml, head + "94\ttext\n", "cells"},
		"padded":           {cuda, nvml, head + strings.Replace(row, "text", " text", 1), "padded"},
		"twice":            {cuda, nvml, head + row + row, "duplicate"},
		"no name":          {cuda, nvml, change("94", "-"), "missing"},
		"number":           {cuda, nvml, change("226", "many"), "running"},
		"unknown code":     {cuda, nvml, change("100", "101"), "a code that is not a CUDA error"},
		"init as device":   {cuda, nvml, change("15", "18"), "a code that NVML does not return"},
		"no evidence":      {cuda, nvml, change("a/b#1", "-"), "no evidence"},
		"basis":            {cuda, nvml, change("assumed 214", "sure 214"), "running_basis"},
		"no basis":         {cuda, nvml, change("assumed 214", "- 214"), "without a basis"},
		"no classes":       {cuda, nvml, change("yes launch", "yes -"), "without classes"},
		"no driver":        {cuda, nvml, change("214 12080", "214 -"), "fallback"},
		"sticky by nature": {strings.Replace(cuda, "x\tyes", "x\tno", 1), nvml, head + row, "that is not sticky"},
		"nvml values":      {cuda, nvml, change("ecc", "eec"), "nvml_values"},
		"event without":    {cuda, nvml, change("94", "lost"), "no XID"},
		"latency":          {cuda, nvml, change("1s", "soon"), "latency"},
		"latency classes":  {cuda, nvml, change("1s launch", "1s sync"), "the trigger ignores"},
		"nothing, no why":  {cuda, nvml, head + tabs("63 text - - - - - - - - - - - - - - - - a/b#1 -"), "no note"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := load(test.errors, test.nvml, test.profiles); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

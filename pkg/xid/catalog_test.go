package xid

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestMain reports a table that does not load once, instead of in each test.
func TestMain(m *testing.M) {
	if _, err := tables(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

func TestTablesLoad(t *testing.T) {
	t.Parallel()
	all := All()
	if len(all) < 176 {
		t.Fatalf("%d codes, want NVIDIA's 176 at least", len(all))
	}
	for i, c := range all {
		if c.Number != i+1 {
			t.Fatalf("code %d at place %d", c.Number, i)
		}
		if c.Template.Evidence == Generic && c.Template.Source != "no line of a driver is known for this code" &&
			c.Number != 46 {
			t.Errorf("code %d: a generic body must say that no line is known, not %q", c.Number, c.Template.Source)
		}
		if c.Template.Source == "" {
			t.Errorf("code %d: body without source", c.Number)
		}
		if got := slices.Sorted(maps.Keys(c.Detectors)); !slices.Equal(
			got, []string{IDDevicePlugin, IDEKS, IDGpud, IDNVSentinel},
		) {
			t.Errorf("code %d: reactions of %v", c.Number, got)
		}
	}
}

func TestTableErrors(t *testing.T) {
	t.Parallel()
	head := strings.Join(strings.Fields(catalogColumns), "\t") + "\n"
	row := "1\tNAME\t-\ttext\tapp\t-\t-\t-\t-\tNONE\tno\t-\tInfo\tno\t-\tevent\tignored\n"
	bodyHead := strings.Join(strings.Fields(bodyColumns), "\t") + "\n"
	body := "1\tdefault\tany\treal\t-\ttext\tsource\n"
	sxidHead := strings.Join(strings.Fields(sxidColumns), "\t") + "\n"
	if _, err := load(head+row, bodyHead+body, sxidHead); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, catalog, bodies, sxids, want string }{
		{"no header", row, bodyHead, sxidHead, "columns"},
		{"twice", head + row + row, bodyHead + body, sxidHead, "duplicate code"},
		{"short row", head + "1\tNAME\n", bodyHead, sxidHead, "cells"},
		{"padded", head + strings.Replace(row, "NAME", " NAME", 1), bodyHead, sxidHead, "padded"},
		{"class", head + strings.Replace(row, "app", "ap", 1), bodyHead, sxidHead, "class"},
		{"no name", head + strings.Replace(row, "NAME", "-", 1), bodyHead, sxidHead, "has no name"},
		{"number", head + strings.Replace(row, "1", "x", 1), bodyHead, sxidHead, "number"},
		{"no body", head + row, bodyHead, sxidHead, "no body"},
		{
			"body of another", head + row, bodyHead + strings.Replace(body, "1", "2", 1), sxidHead,
			"not in the catalog",
		},
		{"evidence", head + row, bodyHead + strings.Replace(body, "real", "true", 1), sxidHead, "evidence"},
		{"driver", head + row, bodyHead + strings.Replace(body, "any", "old", 1), sxidHead, "driver version"},
		{"process", head + row, bodyHead + strings.Replace(body, "-", "x", 1), sxidHead, "process"},
		{"hole", head + row, bodyHead + strings.Replace(body, "text", "{x}", 1), sxidHead, "{x}"},
		{"brace", head + row, bodyHead + strings.Replace(body, "text", "{x", 1), sxidHead, "brace"},
		{"range", head + row, bodyHead + strings.Replace(body, "text", "{%d:2-3=1}", 1), sxidHead, "range"},
		{
			"endless range", head + row, bodyHead + strings.Replace(body, "text", "{%d:0-0xffffffffffffffff=1}", 1),
			sxidHead, "range",
		},
		{
			"big number", head + row, bodyHead + strings.Replace(body, "text", "{%d:0-0x1ffffffffffffffff=1}", 1),
			sxidHead, "out of range",
		},
		{"sxid", head + row, bodyHead + body, sxidHead + "x\tFatal\t1\treal\tyes\tb\ts\n", "code"},
		{"sxid severity", head + row, bodyHead + body, sxidHead + "12345\tfatal\t1\treal\tyes\tb\ts\n", "severity"},
		{"sxid link", head + row, bodyHead + body, sxidHead + "12345\tFatal\t-\treal\tyes\tb\ts\n", "link"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(test.catalog, test.bodies, test.sxids)
			wantError(t, err, test.want)
		})
	}
}

func TestLookupAndSearch(t *testing.T) {
	t.Parallel()
	c, ok := Lookup(79)
	if !ok || c.Name != "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS" || c.NVIDIA.Immediate != "RESTART_BM" ||
		c.Class != "gpu_fatal" {
		t.Errorf("Lookup(79) = %+v", c)
	}
	// What a caller does to its copy must not reach the next one.
	c.Detectors[IDGpud] = Reaction{}
	c.Variants[0].Body = "changed"
	if again, _ := Lookup(79); again.Detectors[IDGpud].Severity != "Fatal" || again.Variants[0].Body == "changed" {
		t.Error("Lookup returns shared memory")
	}
	if _, ok := Lookup(9999); ok {
		t.Error("9999 is in the catalog")
	}
	numbers := func(cs []Code) (out []int) {
		for _, c := range cs {
			out = append(out, c.Number)
		}
		return out
	}
	for word, want := range map[string][]int{
		"15":          {15, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 131}, // 131 is CE15
		"fallen":      {79},
		"PSHC_REENG":  {162},
		"no such xid": nil,
	} {
		if got := numbers(Search(word)); !slices.Equal(got, want) {
			t.Errorf("Search(%q) = %v, want %v", word, got, want)
		}
	}
	if n := len(Search("")); n != len(All()) {
		t.Errorf("Search of nothing finds %d", n)
	}
	if s, ok := LookupSXid(20034); !ok || s.Severity != SeverityFatal || s.Link != 30 {
		t.Errorf("LookupSXid(20034) = %+v, %v", s, ok)
	}
}

// TestReactions holds the columns of the catalog against the lists in the detectors' sources.
func TestReactions(t *testing.T) {
	t.Parallel()
	eks := []int{46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158}
	plugin := []int{13, 31, 43, 45, 68, 109}
	unknownToGpud := []int{133, 174, 175, 176}
	actions := map[string][]int{
		"NONE":            {8, 13, 31, 32, 43, 63, 69, 94},
		"COMPONENT_RESET": {46, 48, 62, 64, 95, 119, 120, 140},
		"RESTART_BM":      {79},
		"RESTART_VM":      {151},
		"CONTACT_SUPPORT": {45, 74, 163, 173},
		"FROM_MESSAGE":    {154},
	}
	for _, c := range All() {
		if got, want := c.Detectors[IDEKS].Fatal, slices.Contains(eks, c.Number); got != want {
			t.Errorf("EKS fatal(%d) = %v", c.Number, got)
		}
		if got, want := c.Detectors[IDDevicePlugin].Fatal, !slices.Contains(plugin, c.Number); got != want {
			t.Errorf("device plugin unhealthy(%d) = %v", c.Number, got)
		}
		if got, want := c.Detectors[IDGpud].Severity == "", slices.Contains(unknownToGpud, c.Number); got != want {
			t.Errorf("gpud unknown(%d) = %v", c.Number, got)
		}
		nvs := c.Detectors[IDNVSentinel]
		if nvs.Fatal != (nvs.Action != "NONE") {
			t.Errorf("NVSentinel(%d): action %s, fatal %v", c.Number, nvs.Action, nvs.Fatal)
		}
		for action, codes := range actions {
			if slices.Contains(codes, c.Number) && nvs.Action != action {
				t.Errorf("NVSentinel(%d) = %s, want %s", c.Number, nvs.Action, action)
			}
		}
	}
}

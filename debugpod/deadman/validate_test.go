package deadman_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

func good() deadman.Change {
	return deadman.Change{
		TTL: time.Minute,
		Files: []deadman.File{{
			Path: "/etc/containerd/config.toml", Before: patch.Sum([]byte("a")), After: patch.Sum([]byte("b")),
			Edits: []patch.Edit{{Old: []byte("a"), New: []byte("b")}},
		}},
		Service: &deadman.Service{Unit: "containerd.service", Socket: "/run/containerd/containerd.sock"},
	}
}

// TestValidate: nothing gets to a node that could mean another file, unit or option than it seems to.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(c *deadman.Change)
		want   string // empty: it is fine
	}{
		"fine":             {func(*deadman.Change) {}, ""},
		"created":          {func(c *deadman.Change) { c.Files[0].Before = deadman.Absent }, ""},
		"a unit of a snap": {func(c *deadman.Change) { c.Service.Unit = "snap.k8s.containerd.service" }, ""},
		"no service":       {func(c *deadman.Change) { c.Service = nil }, ""},
		"no file":          {func(c *deadman.Change) { c.Files = nil }, "no file"},
		"relative":         {func(c *deadman.Change) { c.Files[0].Path = "etc/x" }, "absolute"},
		"with dots":        {func(c *deadman.Change) { c.Files[0].Path = "/etc/../x" }, "clean"},
		"not clean":        {func(c *deadman.Change) { c.Files[0].Path = "/etc//x" }, "clean"},
		"the root":         {func(c *deadman.Change) { c.Files[0].Path = "/" }, "clean"},
		"with a newline":   {func(c *deadman.Change) { c.Files[0].Path = "/etc/x\ny" }, "clean"},
		"twice":            {func(c *deadman.Change) { c.Files = append(c.Files, c.Files[0]) }, "twice"},
		"no change":        {func(c *deadman.Change) { c.Files[0].After = c.Files[0].Before }, "not change"},
		"not a sum":        {func(c *deadman.Change) { c.Files[0].After = "abc" }, "SHA-256"},
		"upper case": {
			func(c *deadman.Change) { c.Files[0].After = strings.ToUpper(c.Files[0].After) }, "SHA-256",
		},
		"edits in disorder": {
			func(c *deadman.Change) { c.Files[0].Edits = []patch.Edit{{Offset: 5}, {Offset: 1}} }, "order",
		},
		"an edit before the start": {
			func(c *deadman.Change) { c.Files[0].Edits = []patch.Edit{{Offset: -1}} }, "order",
		},
		"attributes of what is not": {
			func(c *deadman.Change) { c.Files[0].Before, c.Files[0].Meta = deadman.Absent, &deadman.Meta{} },
			"did not exist",
		},
		"negative time":        {func(c *deadman.Change) { c.TTL = -1 }, "shorter"},
		"may fail for ever":    {func(c *deadman.Change) { c.MayFail, c.TTL = true, 0 }, "requires a TTL"},
		"may fail, no service": {func(c *deadman.Change) { c.MayFail, c.Service = true, nil }, "no service"},
		"an option for a unit": {func(c *deadman.Change) { c.Service.Unit = "--root=x.service" }, "unit"},
		"two units":            {func(c *deadman.Change) { c.Service.Unit = "a.service b.service" }, "unit"},
		"a target":             {func(c *deadman.Change) { c.Service.Unit = "reboot.target" }, "unit"},
		"a URL for a socket":   {func(c *deadman.Change) { c.Service.Socket = "unix:///run/x" }, "socket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good()
			tc.change(&c)
			err := c.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestValidRun(t *testing.T) {
	t.Parallel()
	for run, ok := range map[string]bool{
		"runtime-4bk2x7": true, "a": true, "": false, "..": false, ".": false, "a/b": false, "-a": false, "a b": false,
		"a.b": false, strings.Repeat("a", 64): false, "a\n": false,
	} {
		if err := deadman.ValidRun(run); (err == nil) != ok {
			t.Errorf("%q: %v", run, err)
		}
	}
}

// FuzzValidate: whatever is accepted can be applied to nothing but clean paths, and no edit makes it crash.
func FuzzValidate(f *testing.F) {
	raw, err := json.Marshal(good())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, []byte("a"))
	f.Fuzz(func(t *testing.T, raw, data []byte) {
		var c deadman.Change
		if json.Unmarshal(raw, &c) != nil || c.Validate() != nil {
			return
		}
		for _, file := range c.Files {
			if file.Path[0] != '/' || strings.Contains(file.Path, "/../") {
				t.Errorf("accepted %q", file.Path)
			}
			after, err := patch.Apply(data, file.Edits)
			if err != nil {
				continue
			}
			if back, err := patch.Apply(after, patch.Invert(file.Edits)); err != nil || string(back) != string(data) {
				t.Errorf("%v: %q does not come back from %q", err, data, after)
			}
		}
	})
}

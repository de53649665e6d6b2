package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Who has several problems sees all of them at once, a line each, in one order: that of the overview, of the text below
// it, of json and of names.
func TestSeveralProblemsHaveAnOverview(t *testing.T) {
	t.Parallel()
	r := Filter{}.Apply(twoContainerds())
	want := []string{"rt.wrong-instance", "drv.lib-mismatch", "drv.persistence", "wl.idle-holder"}
	for i, id := range want {
		if r.Items[i].ID != id || !r.Items[i].Root {
			t.Errorf("item %d is %s, wanted the root %s: those that explain the most come first", i, r.Items[i].ID, id)
		}
	}
	if got := strings.Join(Names(r), " "); got != "finding/"+strings.Join(want, " finding/") {
		t.Errorf("-o name has another order: %s", got)
	}
	text := written(t, Text{Width: 80}, r)
	overview, details, _ := strings.Cut(text, "\n\nERROR ")
	at := -1
	for _, id := range want[:3] {
		line := ""
		for l := range strings.Lines(overview) {
			if strings.Contains(l, "  "+id+"  ") {
				line = strings.TrimSuffix(l, "\n")
			}
		}
		if line == "" || !strings.Contains(line, "(Node gpu-") || len([]rune(line)) > 80 {
			t.Errorf("no line of at most 80 columns with the object for %s in the overview:\n%s", id, overview)
		}
		if next := strings.Index("ERROR "+details, id+"\n"); next > 0 && next < at {
			t.Errorf("%s is told before what the overview has before it", id)
		} else if next > 0 {
			at = next
		}
	}
	one := twoContainerds()
	one.Items, one.Edges = one.Items[1:2], nil
	if text := written(t, Text{Width: 80}, one); strings.Count(text, "rt.wrong-instance") != 1 {
		t.Errorf("one problem needs no overview:\n%s", text)
	}
	many := twoContainerds()
	many.Edges = nil
	for i := range 30 {
		f := many.Items[1]
		f.ID, f.Object = fmt.Sprintf("rt.x%d", i), node(strings.Repeat("long-", 30))
		many.Items = append(many.Items, f)
	}
	if text := written(t, Text{Width: 80}, many); !strings.Contains(text, "  and 13 more\n\nERROR") {
		t.Errorf("of 33 problems the overview shows 20 and counts the others:\n%s", text[:2000])
	}
}

// The pod that somebody asks about stands below the root that keeps it from running: pods of users first, then what
// makes GPUs usable.
func TestAffectedPods(t *testing.T) {
	t.Parallel()
	r := Filter{}.Apply(twoContainerds())
	if got, want := Affected(r, 0, 5),
		"Affected: pods ml/train-0, ml/train-1, ml/train-2, ml/train-3, ml/train-4 and 5 more"; got != want {
		t.Errorf("%q, wanted %q", got, want)
	}
	if got := Affected(r, 1, 5); got != "" {
		t.Errorf("a root without pods below it has %q", got)
	}
	r.Items[1].Pods = []string{"ml/x\x1b[31m"}
	if got := Affected(r, 1, 5); got != `Affected: pod ml/x\x1b[31m` {
		t.Errorf("a pod that the root knows itself: %q", got)
	}
	r.Items[1].Object, r.Items[1].Pods = pod("ml", "x"), []string{"ml/x"}
	if got := Affected(r, 1, 5); got != "" {
		t.Errorf("a pod that the root is on is named twice: %q", got)
	}
}

// On a healthy cluster no node is read, and that is no failure: a sentence says so, and nothing "could not be seen".
func TestNodesThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	healthyWhy := engine.NotAsked +
		": according to the API, it looks healthy or is similar to nodes that were inspected (to include it, use --all-gpu-nodes)"
	unknown := func(check, why string, nodes ...string) engine.Unknown {
		u := engine.Unknown{Check: check, Why: why}
		for _, n := range nodes {
			u.Objects = append(u.Objects, node(n))
		}
		return u
	}
	for name, c := range map[string]struct {
		unknown []engine.Unknown
		read    int
		apiOnly bool
		want    string
	}{
		"none read": {
			[]engine.Unknown{
				unknown("hw.xid", healthyWhy, "b", "a"),
				unknown("hw.count", "GPUs on the PCI bus: "+healthyWhy, "a", "b"),
			}, 0, false,
			"2 GPU nodes look healthy according to the API and were not inspected: a, b. To complete 2 checks, run: kubectl gpu-fault doctor --all-gpu-nodes",
		},
		"some read": {
			[]engine.Unknown{unknown("hw.xid", healthyWhy, "a", "b", "c", "d", "e")}, 1, false,
			"5 GPU nodes were not inspected, because, according to the API, they look healthy or are similar to inspected nodes: a, b, c and 2 more. To complete 1 check, run: kubectl gpu-fault doctor --all-gpu-nodes",
		},
		"others named": {
			[]engine.Unknown{unknown("hw.xid", engine.NotAsked+": other nodes were named", "a")}, 1, false,
			"1 GPU node was not selected: a. To complete 1 check, run: kubectl gpu-fault doctor --all-gpu-nodes",
		},
		"--api-only": {
			[]engine.Unknown{
				{Check: "hw.xid", Object: finding.Object{Kind: "Cluster"}, Why: "nodes were not read: --api-only"},
			}, 0, true,
			"No nodes were inspected because of --api-only. To complete 1 check, omit it.",
		},
	} {
		r := healthy()
		r.Unknown, r.Summary.NodesRead, r.Summary.Unknown, r.Snapshot.APIOnly = c.unknown, c.read, len(c.unknown),
			c.apiOnly
		if got := Unread(r); got != c.want {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
		text := written(t, Text{}, r)
		if !strings.HasPrefix(text, "no problem found in what was checked\n") ||
			strings.Contains(text, "Could not check") || strings.Count(text, c.want) != 1 {
			t.Errorf("%s: it is told as a failure, or not once:\n%s", name, text)
		}
		r.Unknown = append(r.Unknown, unknown("rt.x", "not inspected: the node is not Ready", "z"))
		if text := written(t, Text{}, r); !strings.Contains(
			text, "Could not check:\n  not inspected: the node is not Ready: rt.x on Node z\n",
		) || Headline(r) != "no problem found, but not everything could be checked" {
			t.Errorf("%s: what failed is not told besides:\n%s", name, text)
		}
	}
}

package check

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// The evidence is the values that were compared, as they are: whoever reads the report can judge without the cluster.
// Secrets are not shown.
func TestEvidence(t *testing.T) {
	t.Parallel()
	o := map[string]any{
		"kind": "Deployment", "metadata": map[string]any{"name": "d", "labels": map[string]any{"a.b/c": "x"}},
		"spec": map[string]any{
			"replicas": int64(2), "list": []any{map[string]any{"name": "n"}}, "long": strings.Repeat("ä", 500),
		},
		"status": map[string]any{"readyReplicas": int64(1)},
	}
	secret := map[string]any{
		"kind": "Secret", "metadata": map[string]any{"name": "s"}, "data": map[string]any{"password": "aGVsbG8="},
		"stringData": map[string]any{"x": "hello"},
	}
	object, list := scenario.Check{Object: &scenario.Ref{}}, scenario.Check{Objects: &scenario.Selector{}}
	for _, test := range []struct {
		check  scenario.Check
		vars   expr.Vars
		expect string
		want   string
	}{
		{object, expr.Vars{"o": o}, `o.spec.replicas >= 3`, `o.spec.replicas = 2`},
		{
			object, expr.Vars{"o": o}, `o.spec.list[0].name == "x" && o.metadata.labels["a.b/c"] == 'y'`,
			`o.spec.list[0].name = "n"; o.metadata.labels["a.b/c"] = "x"`,
		},
		{object, expr.Vars{"o": o}, `o.spec.list[3].name == "x"`, `o.spec.list[3] does not exist`},
		{
			object, expr.Vars{"o": o}, `has(o.spec.paused) && o.?spec.?x.orValue(1) == 2`,
			`o.spec.paused does not exist; o.?spec.?x does not exist`,
		},
		{
			object, expr.Vars{"o": o}, `o.spec.list.exists(c, c.name == "x") && size(o.spec.list) == 1`,
			`o.spec.list = [{"name":"n"}]`,
		},
		{object, expr.Vars{"o": o}, `"zoo.spec" == foo.o.spec`, ``},
		{object, expr.Vars{"o": o, "was": o}, `o.spec.replicas == was.spec.replicas`, `o.spec.replicas = 2`},
		{
			object, expr.Vars{"o": secret},
			`o.data.password == "x" && o.stringData == {} && o["data"]["password"] == ""`,
			`o.data is not shown; o.stringData is not shown; o["data"] is not shown`,
		},
		{object, expr.Vars{"o": nil}, `o.spec.replicas == 3`, ``},
		{
			list, expr.Vars{"list": []any{o, secret, "x"}}, `list.all(d, d.spec.replicas > 3)`,
			`d: d.spec.replicas = 2; s: d.spec does not exist`,
		},
	} {
		test.check.Expect = test.expect
		got := evidence(test.check, view{vars: test.vars})
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" || strings.Contains(got, "aGVsbG8") ||
			strings.Contains(got, "hello") {
			t.Errorf("%s: %s, not %s", test.expect, got, test.want)
		}
	}
	if got := values("o", o, `o.spec.long == ""`)[0]; len(got) > maxValue+20 || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := states([]any{o, secret, o, o, o, o}); got !=
		"6: Deployment d 1/2 ready, Secret s, Deployment d 1/2 ready, Deployment d 1/2 ready, and 2 more" {
		t.Error(got)
	}
}

// No expression, and no object, makes the evidence fail or long.
func FuzzEvidence(f *testing.F) {
	for _, seed := range []string{
		`o.a[0]["b"].c()`, `o.?a`, `list.all(x, x.a.b == o['c'])`, `o[99999999999999999999]`, `o.()`, "o.\xff",
	} {
		f.Add(seed, "text")
	}
	f.Fuzz(func(t *testing.T, expect, text string) {
		o := map[string]any{"kind": text, "a": []any{map[string]any{"b": text}}, text: text, "metadata": text}
		for _, c := range []scenario.Check{
			{Object: &scenario.Ref{}, Expect: expect}, {Objects: &scenario.Selector{}, Expect: expect},
		} {
			got := evidence(c, view{
				vars: expr.Vars{"o": o, "list": []any{o, text, nil}}, evidence: state(o) + states([]any{o, nil, text}),
			})
			if len(got) > maxSaw {
				t.Errorf("%d bytes", len(got))
			}
		}
	})
}

// Events look the same whichever API they came by, the oldest first, and only those of the object.
func TestEvents(t *testing.T) {
	t.Parallel()
	about := corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "a"}
	other := about
	other.Name = "q"
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "a", CreationTimestamp: metav1.Unix(50, 0)}
	}
	w := newWorld(
		&corev1.Event{ObjectMeta: meta("new"), InvolvedObject: about, Reason: "FailedScheduling", Message: "0/2",
			EventTime: metav1.NewMicroTime(metav1.Unix(100, 5000).Time),
			Series:    &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(metav1.Unix(300, 0).Time)}},
		&corev1.Event{
			ObjectMeta: meta("old"), InvolvedObject: about, Reason: "Pulled", FirstTimestamp: metav1.Unix(100, 0),
			LastTimestamp: metav1.Unix(200, 0), Count: 3,
		},
		&corev1.Event{ObjectMeta: meta("bare"), InvolvedObject: about},
		&corev1.Event{ObjectMeta: meta("other"), InvolvedObject: other, Reason: "Other"},
	)
	ref := &scenario.Ref{Kind: "Pod", Namespace: "a", Name: "p"}
	for _, expect := range []string{
		`list.map(e, e.metadata.name) == ["bare", "old", "new"]`,
		`list[0].reason == "" && list[0].count == 1 && list[0].lastTimestamp == "1970-01-01T00:00:50Z"`,
		`list[1].count == 3 && timestamp(list[1].lastTimestamp) - timestamp(list[1].firstTimestamp) == duration("100s")`,
		`list[2].count == 7 && timestamp(list[2].lastTimestamp) - timestamp(list[2].firstTimestamp) < duration("200s")`,
	} {
		if r := w.one(t, scenario.Check{Events: ref, Expect: expect}); !r.OK || r.Saw != "FailedScheduling: 0/2" {
			t.Errorf("%s: %+v", expect, r)
		}
	}
	if r := w.one(
		t, scenario.Check{Events: &scenario.Ref{Kind: "Pod", Namespace: "a"}, Expect: `list.size() == 4`},
	); !r.OK {
		t.Errorf("of all pods: %+v", r)
	}
	if r := w.one(
		t, scenario.Check{Events: &scenario.Ref{Kind: "Job", Namespace: "a", Name: "p"}, Expect: `list.size() == 0`},
	); !r.OK || r.Saw != "no events" {
		t.Errorf("none: %+v", r)
	}
}

package expr

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func vars() Vars {
	return Vars{
		"p": map[string]any{
			"n": int64(2), "name": "trainer", "list": []any{"a", "b"}, "namespace": "team", "on": true,
		},
		"facts": map[string]any{"nodes": []any{
			map[string]any{"name": "node-a", "gpus": int64(2)}, map[string]any{"name": "node-b", "gpus": int64(1)},
		}},
		"o": map[string]any{
			"status":   map[string]any{"readyReplicas": int64(2)},
			"metadata": map[string]any{"labels": map[string]any{"a/b": "c"}},
		},
		"now": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// TestEval holds the language: values with their types, the extensions, our own functions, and what null and missing
// keys do.
func TestEval(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		`p.n + 1`:                           int64(3),
		`p.namespace`:                       "team", // a reserved word of CEL, but not as a field
		`1.5`:                               1.5,
		`p.n > 1.5`:                         true,
		`o.?spec.?x.orValue(7)`:             int64(7),
		`o.?spec`:                           Omit{},
		`has(o.spec)`:                       false,
		`o.metadata.labels["a/b"]`:          "c",
		`facts.nodes.map(n, n.name)`:        []any{"node-a", "node-b"},
		`facts.nodes.filter(n, n.gpus > 1)`: []any{map[string]any{"name": "node-a", "gpus": int64(2)}},
		`facts.nodes.all(p, p.gpus > 0)`:    true,
		`{'a': omit, 'b': [1, omit]}`:       map[string]any{"b": []any{int64(1)}},
		`quantity("16Gi")`:                  float64(16 << 30),
		`quantity("500m") == 0.5`:           true,
		`quantity(2) >= quantity("1")`:      true,
		`quantity("2").isGreaterThan(quantity("1")) && quantity("1").compareTo(quantity("2")) == -1 && quantity("1").isLessThan(quantity("2"))`: true,
		`isQuantity("2Gi") && !isQuantity("much") && !isQuantity(null)`:                                                                         true,
		`parseJSON('{"a": [1, 2.5]}').a`:                         []any{int64(1), 2.5},
		`parseYAML('a: [1, 2.5]').a`:                             []any{int64(1), 2.5},
		`regex.extract("Xid 79, pid", r"Xid (\d+)").orValue("")`: "79",
		`"A-b".lowerAscii().split("-").join("+")`:                "a+b",
		`lists.range(3)`:                                         []any{int64(0), int64(1), int64(2)},
		`[3, 1].sort()`:                                          []any{int64(1), int64(3)},
		`sets.contains(p.list, ["a"])`:                           true,
		`now - duration("5s")`:                                   "2026-01-02T03:04:00Z",
		`now > timestamp("2026-01-01T00:00:00Z")`:                true,
		`duration("90s")`:                                        "1m30s",
		`missing == null`:                                        true,
		`null`:                                                   nil,
		`uint(3)`:                                                int64(3),
		`cel.bind(x, p.n, x * x)`:                                int64(4),
		`b"abc"`:                                                 "abc",
		`"%s has %d".format([p.name, p.n])`:                      "trainer has 2",
	} {
		program, err := Compile(text, "p", "facts", "o", "now", "missing", "omit")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := program.Eval(context.Background(), vars())
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// TestErrors holds that errors are in words of who writes a scenario, and have their places.
func TestErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                             "empty expression (at character 1)",
		`p.on ? null : {}`:             "wrap one of them in dyn(...)",
		`p.`:                           "no viable alternative at input '.' (at character 3)",
		`p.n ==`:                       "unexpected end of the expression (at character 7)",
		`x + 1`:                        "unknown name x; supported variables: facts, p (at character 1)",
		`fact.nodes`:                   "unknown name fact; did you mean facts? (at character 1)",
		"1 +\n  q":                     "unknown name q; supported variables: facts, p (at line 2, character 3)",
		`"a" + 1`:                      "found no matching overload for '_+_' applied to '(string, int)' (at character 5)",
		`p.list.filter(x)`:             "filter requires a name and an expression",
		`p.none`:                       `p has no field "none"`,
		`facts.nodes.all(x, x.y == 1)`: `x has no field "y"`,
		`{"a": {}}.a["b c"]`:           `{"a": {}}.a has no field "b c"`,
		`has(facts.nodes[0].a.b)`:      `facts.nodes[0] has no field "a"`,
		`p.name + 1`:                   "does not support the types of its arguments",
		`[1][3]`:                       "index 3 is out of range",
		`1 / 0`:                        "division by zero",
		`quantity("much")`:             `invalid quantity "much": must be a number such as 2, 500m or 16Gi`,
		`quantity(null)`:               "quantity() does not support null_type: must be a string or a number",
		`parseJSON("{")`:               "invalid JSON: unexpected end of JSON input",
		`parseYAML("{")`:               "invalid YAML: ",
		`{1: 2}`:                       "map key 1 is not a string",
		`"a".matches("(")`:             "missing closing )",
		`type(1)`:                      "unsupported type type",
		`18446744073709551615u`:        "18446744073709551615 is too large",
		`1.0 / 0.0`:                    "unsupported number +Inf",
	} {
		program, err := Compile(text, "p", "facts", "omit")
		if err == nil {
			_, err = program.Eval(context.Background(), vars())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, and not %q", text, err, want)
		}
	}
}

// TestBool holds that a condition which is none says so, and does not count as false.
func TestBool(t *testing.T) {
	t.Parallel()
	program, err := Compile("p.name", "p")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := program.Bool(context.Background(), vars()); err == nil ||
		err.Error() != `p.name must be true or false, not "trainer"` {
		t.Errorf("got %v", err)
	}
}

// TestBounds holds that a file from somebody else can neither hang nor blow up the program: cost, time, ranges,
// nesting.
func TestBounds(t *testing.T) {
	t.Parallel()
	r := `lists.range(999)`
	slow, err := Compile(r + `.all(a, ` + r + `.all(b, ` + r + `.all(c, a + b + c >= 0)))`)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := slow.Eval(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "takes too long") {
		t.Errorf("no bound: %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the bound came after %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := slow.Eval(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: %v", err)
	}
	if _, err := Compile(strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000)); err == nil {
		t.Error("nesting has no bound")
	}
	if _, err := Compile(strings.Repeat("1+", 50_000) + "1"); err == nil {
		t.Error("size has no bound")
	}
	if p, err := Compile("lists.range(1000000)"); err == nil {
		if _, err = p.Eval(context.Background(), nil); err == nil {
			t.Error("ranges have no bound")
		}
	}
	var deep any = "x"
	for range maxDepth + 2 {
		deep = []any{deep}
	}
	if _, err := Interpolate(deep, nil); err == nil {
		t.Error("values have no bound")
	}
}

// TestInterpolate holds what becomes of strings: types kept, texts joined, omit, $${, braces and quotes within
// expressions, lines.
func TestInterpolate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   any
		want any
	}{
		{"plain", "plain"},
		{int64(3), int64(3)},
		{nil, nil},
		{"${p.n}", int64(2)},
		{"${ p.n }", int64(2)},
		{"${p.n} ", "2 "},
		{"${p.n}${p.name}", "2trainer"},
		{"${p.list}", []any{"a", "b"}},
		{"x ${p.list} ${1.5} ${true}", `x ["a","b"] 1.5 true`},
		{"echo $${HOME} $HOME $(id) $$ ${p.n}", "echo ${HOME} $HOME $(id) $$ 2"},
		{"$${p.n}", "${p.n}"},
		{"$$${p.n}", "$${p.n}"},
		{"${{'a': {'b': 1}}.a.b}", int64(1)},
		{`${"}" + '{' + "\"}" + r"\}" + """ " } """}`, `}{"}\} " } `},
		{"one\n  ${p.name}:\n    ${p.n}\n", "one\n  trainer:\n    2\n"},
		{"${p.n // } a comment\n + 1}", int64(3)},
		{map[string]any{"a": "${omit}", "b": "${p.on ? 1 : omit}"}, map[string]any{"b": int64(1)}},
		{
			map[string]any{"${p.name}-${p.n}": "${p.n}", "$${x}": "y", "gone": "${p.on ? omit : 1}"},
			map[string]any{"trainer-2": int64(2), "${x}": "y"},
		},
		{[]any{"${omit}", "a", map[string]any{"x": []any{"${omit}"}}}, []any{"a", map[string]any{"x": []any{}}}},
		{"${optional.none()}", Omit{}},
		{"${optional.of(3)}", int64(3)},
		{"ü${p.n}", "ü2"},
	} {
		before, _ := json.Marshal(c.in)
		got, err := Interpolate(c.in, vars())
		if err != nil {
			t.Errorf("%v: %v", c.in, err)
			continue
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v: %s", c.in, diff)
		}
		if after, _ := json.Marshal(c.in); string(after) != string(before) {
			t.Errorf("%s was changed to %s: it must be a copy", before, after)
		}
	}
}

// TestInterpolateErrors holds that all that is wrong is told at once, each with its path, and its place in the text.
func TestInterpolateErrors(t *testing.T) {
	t.Parallel()
	_, err := Interpolate(map[string]any{
		"a":      []any{"fine", map[string]any{"b/c": "x ${p.none}"}},
		"d":      "${p.n",
		"e":      "line\nline ${1 +} and ${q}",
		"f":      "x ${omit}",
		"g":      "x ${null}",
		"h.i":    "${HOME}",
		"${p.n}": "x", "${p.name}": "x", "trainer": "x",
	}, vars())
	want := `["${p.n}"]: key must be a string, not 2
a[1]["b/c"]: ${p.none}: p has no field "none" (at character 5)
d: missing } after ${; write $${ for a literal ${ (at character 1)
e: unexpected end of the expression (at line 2, character 11)
f: omit is not allowed within a longer string (at character 5)
g: null is not allowed within a longer string (at character 5)
["h.i"]: unknown name HOME; supported variables: facts, now, o, p (at character 3)
trainer: duplicate key "trainer"`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
	var at *PathError
	if !errors.As(err, &at) || at.Path != `["${p.n}"]` {
		t.Errorf("no PathError: %+v", at)
	}
}

// TestFields holds which parameters an expression uses, also where a macro's variable has the name of theirs.
func TestFields(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`p.a + p["b"] + p.?c.orValue(1) + facts.p.d`:       {"a", "b", "c"},
		`list.all(p, p.x > 1) && p.y`:                      {"y"},
		`list.filter(p, p.x == 1).size() == p.z.w`:         {"z"},
		`{"k": p.m}.k + [p.l][0] + size(p.s) + p.s.size()`: {"l", "m", "s"},
		`p.list.map(q, p.inner)`:                           {"inner", "list"},
		`has(p.maybe)`:                                     {"maybe"},
		`p[facts.x]`:                                       nil,
	} {
		program, err := Compile(text, "p", "facts", "list")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, program.Fields("p")); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// FuzzInterpolate holds that no text makes it panic, that text without an expression stays, and that the escape gives
// the text back.
func FuzzInterpolate(f *testing.F) {
	for _, s := range []string{
		"", "${", "$${", "${p.n}", "${'}'}", "a${p.list}b", "${//}", "${r'\\'}", "${\"\"\"}\"\"\"}", "${p.?x}",
		"${[1,2].map(p, p)}", "${omit}", "$$${p.n}", "${{}}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !strings.Contains(s, "${") {
			if got, err := Interpolate(s, vars()); err != nil || got != s {
				t.Fatalf("%q became %v, %v", s, got, err)
			}
		}
		if got, err := Interpolate(strings.ReplaceAll(s, "${", "$${"), vars()); err != nil || got != s {
			t.Fatalf("%q escaped became %v, %v", s, got, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		out, err := InterpolateContext(ctx, map[string]any{"a": s}, vars())
		if err == nil {
			if _, err := json.Marshal(out); err != nil {
				t.Fatalf("%q gives what JSON has not: %v", s, err)
			}
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%q takes too long", s)
		}
		if (err == nil) != (Closed(s) == nil) && Closed(s) != nil {
			t.Fatalf("%q is not closed, and was taken", s)
		}
		_, _ = Compiled(s, "p")
		_ = IsExpression(s)
	})
}

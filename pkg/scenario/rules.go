package scenario

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Names of fields that exclude each other.
var (
	stepActions = []string{
		"create", "patch", "xid", "runtime", "firewall", "cuda", "wait", "delete", "replace", "nodeShell",
	}
	trainerActions = []string{"xid", "runtime", "firewall", "cuda"}
	attemptActions = []string{"delete", "replace", "nodeShell"}
	checkSources   = []string{"object", "objects", "logs", "events", "exec", "http", "can", "probe", "terraform"}
)

// difficulties are those that `scenario list` sorts by.
var difficulties = []string{"junior", "middle", "senior"}

// rules holds what the types do not say.
func (c *checker) rules(n *node, t reflect.Type, path string) {
	switch t {
	case reflect.TypeFor[Scenario]():
		c.is(n, path, "apiVersion", APIVersion)
		c.is(n, path, "kind", Kind)
	case reflect.TypeFor[Metadata]():
		c.metadata(n, path)
	case reflect.TypeFor[Param]():
		c.param(n, path)
	case reflect.TypeFor[Played]():
		c.played(n, path)
	case reflect.TypeFor[Step]():
		c.step(n, path)
	case reflect.TypeFor[Create]():
		c.objects(n.get("objects"), expr.Join(path, "objects"))
	case reflect.TypeFor[Probe]():
		c.probe(n, path)
	case reflect.TypeFor[Patch]():
		c.exactlyOne(n, path, "merge", "json")
	case reflect.TypeFor[Check]():
		c.exactlyOne(n, path, checkSources...)
	case reflect.TypeFor[Logs](), reflect.TypeFor[Exec]():
		c.exactlyOne(n, path, "labels", "pod")
	case reflect.TypeFor[HTTP]():
		c.exactlyOne(n, path, "service", "url")
	case reflect.TypeFor[CUDAFault]():
		c.someOf(n, path, "xid", "error", "memLimit", "hideAll", "hang")
	case reflect.TypeFor[Access]():
		if l := n.get("namespaces"); l != nil && l.shape == list && len(l.items) == 0 {
			c.fail(l.line, l.column, expr.Join(path, "namespaces"),
				"is empty: the candidate needs a namespace to work in")
		}
	}
}

// played holds that choices are left of each parameter that is narrowed.
func (c *checker) played(n *node, path string) {
	only := n.get("only")
	if only == nil || only.shape != mapping {
		return
	}
	for _, e := range only.keys {
		if e.value.shape == list && len(e.value.items) == 0 {
			c.fail(e.line, e.column, expr.Join(path, "only."+e.name), "is empty")
		}
	}
}

func (c *checker) is(n *node, path, name, want string) {
	if v := n.get(name); v != nil && v.value != want {
		c.fail(v.line, v.column, expr.Join(path, name), "must be %s, and is %s", want, v.describe())
	}
}

// set returns those of the names that a map has: certainly, as opposed to what an expression may omit.
func set(n *node, names []string) (certain, perhaps []entry) {
	for _, e := range n.keys {
		if !slices.Contains(names, e.name) || e.value.shape == scalar && e.value.value == nil {
			continue
		}
		if text, is := e.value.value.(string); is && expr.IsExpression(text) && strings.Contains(text, "omit") {
			perhaps = append(perhaps, e)
			continue
		}
		certain = append(certain, e)
	}
	return certain, perhaps
}

// exactlyOne is for fields of which one must be set.
func (c *checker) exactlyOne(n *node, path string, names ...string) {
	certain, perhaps := set(n, names)
	if !c.expressions {
		certain, perhaps = append(certain, perhaps...), nil
	}
	switch {
	case len(certain)+len(perhaps) == 0:
		c.fail(n.line, n.column, path, "must have one of %s", strings.Join(names, ", "))
	case len(certain) > 1:
		e := certain[1]
		c.fail(e.line, e.column, expr.Join(path, e.name), "there is already %s: one of %s only", certain[0].name,
			strings.Join(names, ", "))
	}
}

func (c *checker) someOf(n *node, path string, names ...string) {
	if certain, perhaps := set(n, names); len(certain)+len(perhaps) == 0 {
		c.fail(n.line, n.column, path, "must have one of %s", strings.Join(names, ", "))
	}
}

func (c *checker) step(n *node, path string) {
	c.exactlyOne(n, path, stepActions...)
	refused, why := attemptActions, "is for solutions and wrong fixes only"
	if c.attempt {
		refused, why = trainerActions, "is nothing that a candidate can do"
	}
	certain, perhaps := set(n, refused)
	for _, e := range append(certain, perhaps...) {
		c.fail(e.line, e.column, expr.Join(path, e.name), "%s", why)
	}
	if shim := n.get("create").get("shim"); c.attempt && shim != nil {
		c.fail(shim.line, shim.column, path+".create.shim", "%s", why)
	}
	if replace := n.get("replace"); replace != nil {
		c.objects(replace, expr.Join(path, "replace"))
	}
	if wait := n.get("wait"); wait != nil && wait.shape == list && len(wait.items) == 0 {
		c.fail(wait.line, wait.column, expr.Join(path, "wait"), "is empty")
	}
}

// objects are manifests: each says what it is and how it is called.
func (c *checker) objects(n *node, path string) {
	if n == nil || n.shape != list {
		return
	}
	if len(n.items) == 0 {
		c.fail(n.line, n.column, path, "is empty")
	}
	for i, object := range n.items {
		place := fmt.Sprintf("%s[%d]", path, i)
		if object.shape != mapping {
			continue
		}
		for _, name := range []string{"apiVersion", "kind"} {
			c.needsText(object, name, place)
		}
		switch meta := object.get("metadata"); {
		case meta == nil:
			c.fail(object.line, object.column, place+".metadata", "is missing: the object needs a name")
		case meta.shape == mapping:
			c.needsText(meta, "name", place+".metadata")
		}
	}
}

func (c *checker) needsText(n *node, name, path string) {
	v := n.get(name)
	if v == nil {
		c.fail(n.line, n.column, expr.Join(path, name), "is missing")
	} else if text, is := v.value.(string); !is || text == "" {
		c.fail(v.line, v.column, expr.Join(path, name), "must be text, and is %s", v.describe())
	}
}

// probe may leave out what the checker knows: the kind and the name of the pod.
func (c *checker) probe(n *node, path string) {
	pod := n.get("pod")
	if pod == nil || pod.shape != mapping {
		return
	}
	if kind := pod.get("kind"); kind != nil {
		c.is(pod, expr.Join(path, "pod"), "kind", "Pod")
	}
	if pod.get("spec") == nil {
		c.fail(pod.line, pod.column, path+".pod.spec", "is missing")
	}
}

func (c *checker) metadata(n *node, path string) {
	if name := n.get("name"); name != nil {
		if text, is := name.value.(string); is && text != "" && len(validation.IsDNS1123Label(text)) > 0 {
			c.fail(name.line, name.column, expr.Join(path, "name"),
				"%q: write small letters, digits and dashes, up to 63", text)
		}
	}
	if d := n.get("difficulty"); d != nil {
		if text, is := d.value.(string); is && !slices.Contains(difficulties, text) {
			c.fail(d.line, d.column, expr.Join(path, "difficulty"), "must be one of %s, and is %s",
				strings.Join(difficulties, ", "), d.describe())
		}
	}
	if m := n.get("minutes"); m != nil {
		if minutes, is := m.value.(int64); is && (minutes < 1 || minutes > 480) {
			c.fail(m.line, m.column, expr.Join(path, "minutes"), "must be from 1 to 480, and is %d", minutes)
		}
	}
}

// maxParam bounds numbers that are drawn, so that counting them never overflows.
const maxParam = 1_000_000_000

func (c *checker) param(n *node, path string) {
	c.exactlyOne(n, path, "oneOf", "between", "expr")
	if o := n.get("oneOf"); o != nil && o.shape == list {
		if len(o.items) == 0 {
			c.fail(o.line, o.column, expr.Join(path, "oneOf"), "is empty")
		}
		for i, item := range o.items {
			if text, is := item.value.(string); is && strings.Contains(text, "${") {
				c.fail(item.line, item.column, fmt.Sprintf("%s[%d]", expr.Join(path, "oneOf"), i),
					"is not interpolated: use a parameter with expr")
			}
		}
	}
	b := n.get("between")
	if b == nil || b.shape != list {
		return
	}
	if len(b.items) != 2 {
		c.fail(b.line, b.column, expr.Join(path, "between"), "must be two numbers, the least and the most, and has %d",
			len(b.items))
		return
	}
	least, is1 := b.items[0].value.(int64)
	most, is2 := b.items[1].value.(int64)
	switch {
	case !is1 || !is2:
	case least > most:
		c.fail(b.line, b.column, expr.Join(path, "between"), "%d is more than %d", least, most)
	case least < -maxParam || most > maxParam:
		c.fail(b.line, b.column, expr.Join(path, "between"), "is outside of %d to %d", -maxParam, maxParam)
	}
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	keywords   = []string{"false", "in", "null", "true"}
)

// paramNames are those that p.NAME can say.
func (c *checker) paramNames(n *node, path string) {
	for _, e := range n.keys {
		if !identifier.MatchString(e.name) {
			c.fail(e.line, e.column, path, "%q is no name for p.NAME: letters, digits and _, no digit first", e.name)
		} else if slices.Contains(keywords, e.name) {
			c.fail(e.line, e.column, path, "%q is a word of CEL: p.%s would be a syntax error", e.name, e.name)
		}
	}
}

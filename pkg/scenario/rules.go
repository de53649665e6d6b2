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

// Mutually exclusive fields.
var (
	stepActions = []string{
		"create", "patch", "xid", "runtime", "firewall", "device", "cuda", "wait", "delete", "replace", "nodeShell",
		"inPods",
	}
	trainerActions = []string{"xid", "runtime", "firewall", "device", "cuda"}
	attemptActions = []string{"delete", "replace", "nodeShell", "inPods"}
	checkSources   = []string{
		"object", "objects", "logs", "events", "exec", "http", "can", "probe", "handler", "terraform",
	}
)

// difficulties are the supported difficulties, in the order of `scenario list`.
var difficulties = []string{"junior", "mid-level", "senior"}

// rules checks constraints that the Go types do not express.
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
	case reflect.TypeFor[InPods]():
		c.exactlyOne(n, path, "exec", "debug", "resize", "metadata")
	case reflect.TypeFor[Patch]():
		c.exactlyOne(n, path, "merge", "json")
	case reflect.TypeFor[Check]():
		c.exactlyOne(n, path, checkSources...)
	case reflect.TypeFor[Logs](), reflect.TypeFor[Exec]():
		c.exactlyOne(n, path, "labels", "pod")
	case reflect.TypeFor[HTTP]():
		c.exactlyOne(n, path, "service", "url")
	case reflect.TypeFor[CUDAFault]():
		c.someOf(n, path, "xid", "error", "memLimit", "hideAll", "driverMismatch", "hang")
	case reflect.TypeFor[Access]():
		if l := n.get("namespaces"); l != nil && l.shape == list && len(l.items) == 0 {
			c.fail(l.line, l.column, expr.Join(path, "namespaces"),
				"must have at least one namespace for the candidate")
		}
	}
}

// played verifies that each parameter in workload.only has at least one choice.
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
		c.fail(v.line, v.column, expr.Join(path, name), "must be %s, not %s", want, v.describe())
	}
}

// set returns which of the given fields are set in a map: those that are certainly set, and those that are set unless
// an expression omits them.
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

// exactlyOne verifies that exactly one of the fields is set.
func (c *checker) exactlyOne(n *node, path string, names ...string) {
	certain, perhaps := set(n, names)
	if !c.expressions {
		certain, perhaps = append(certain, perhaps...), nil
	}
	switch {
	case len(certain)+len(perhaps) == 0:
		c.fail(n.line, n.column, path, "must have one of: %s", strings.Join(names, ", "))
	case len(certain) > 1:
		e := certain[1]
		c.fail(e.line, e.column, expr.Join(path, e.name), "conflicts with %s: must have only one of %s",
			certain[0].name,
			strings.Join(names, ", "))
	}
}

func (c *checker) someOf(n *node, path string, names ...string) {
	if certain, perhaps := set(n, names); len(certain)+len(perhaps) == 0 {
		c.fail(n.line, n.column, path, "must have at least one of: %s", strings.Join(names, ", "))
	}
}

func (c *checker) step(n *node, path string) {
	c.exactlyOne(n, path, stepActions...)
	refused, why := attemptActions, "is supported only in solutions and wrong fixes"
	if c.attempt {
		refused, why = trainerActions, "is not supported in solutions and wrong fixes"
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

// objects verifies that each manifest has a kind and a name.
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
			c.fail(object.line, object.column, place+".metadata", "is missing: the object requires a name")
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
		c.fail(v.line, v.column, expr.Join(path, name), "must be a string, not %s", v.describe())
	}
}

// probe validates the pod of a probe. The kind and the name of the pod are optional.
func (c *checker) probe(n *node, path string) {
	for _, name := range []string{"pod", "peer"} {
		pod := n.get(name)
		if pod == nil || pod.shape != mapping {
			continue
		}
		if kind := pod.get("kind"); kind != nil {
			c.is(pod, expr.Join(path, name), "kind", "Pod")
		}
		if pod.get("spec") == nil {
			c.fail(pod.line, pod.column, expr.Join(path, name)+".spec", "is missing")
		}
	}
}

func (c *checker) metadata(n *node, path string) {
	if name := n.get("name"); name != nil {
		if text, is := name.value.(string); is && text != "" && len(validation.IsDNS1123Label(text)) > 0 {
			c.fail(name.line, name.column, expr.Join(path, "name"),
				"invalid name %q: must consist of at most 63 lowercase letters, digits and dashes", text)
		}
	}
	if d := n.get("difficulty"); d != nil {
		if text, is := d.value.(string); is && !slices.Contains(difficulties, text) {
			c.fail(d.line, d.column, expr.Join(path, "difficulty"), "must be one of %s, not %s",
				strings.Join(difficulties, ", "), d.describe())
		}
	}
	if m := n.get("minutes"); m != nil {
		if minutes, is := m.value.(int64); is && (minutes < 1 || minutes > 480) {
			c.fail(m.line, m.column, expr.Join(path, "minutes"), "must be from 1 to 480, not %d", minutes)
		}
	}
}

// maxParam limits the numbers in a range, so that counting them does not overflow.
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
					"must not contain ${}: use a parameter with expr")
			}
		}
	}
	b := n.get("between")
	if b == nil || b.shape != list {
		return
	}
	if len(b.items) != 2 {
		c.fail(b.line, b.column, expr.Join(path, "between"), "must have two numbers, minimum and maximum, not %d",
			len(b.items))
		return
	}
	least, is1 := b.items[0].value.(int64)
	most, is2 := b.items[1].value.(int64)
	switch {
	case !is1 || !is2:
	case least > most:
		c.fail(b.line, b.column, expr.Join(path, "between"), "minimum %d is greater than maximum %d", least, most)
	case least < -maxParam || most > maxParam:
		c.fail(b.line, b.column, expr.Join(path, "between"), "must be within the range %d to %d", -maxParam, maxParam)
	}
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	keywords   = []string{"false", "in", "null", "true"}
)

// paramNames verifies that expressions can refer to the parameters as p.NAME.
func (c *checker) paramNames(n *node, path string) {
	for _, e := range n.keys {
		if !identifier.MatchString(e.name) {
			c.fail(e.line, e.column, path,
				"invalid name %q: must consist of letters, digits and _, and not start with a digit", e.name)
		} else if slices.Contains(keywords, e.name) {
			c.fail(e.line, e.column, path, "invalid name %q: reserved word in CEL", e.name)
		}
	}
}

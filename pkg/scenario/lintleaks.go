package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// telling are words that say in a name that something was broken on purpose.
var telling = []string{
	"fault", "faulty", "broken", "inject", "injected", "gpufault", "scenario", "wrong", "chaos", "sabotage", "bug",
	"buggy", "solution", "decoy", "gpu-fault",
}

// leaks are words of the answer where the candidate reads them.
func (l *linter) leaks(r *Resolved) {
	root := r.source.root
	secrets := secretWords(r)
	for _, name := range []string{"title", "briefing", "simulated"} {
		n := root.find("public", name)
		text, _ := n.value.(string)
		for _, s := range secrets {
			if contains(text, s) {
				l.wrong(n, "public."+name, "says %q, which is of the answer", s)
			}
		}
	}
	for _, part := range []string{"setup", "inject"} {
		for i, step := range root.find(part).items {
			for j, object := range step.get("create").find("objects").list() {
				l.leaksOf(object, fmt.Sprintf("%s[%d].create.objects[%d]", part, i, j), append(secrets, telling...))
			}
		}
	}
}

func (n *node) list() []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// secretWords returns those of the answer by which it could be found: the mechanism in all its forms, and the variant's
// name.
func secretWords(r *Resolved) []string {
	m := r.Sealed.RootCause.Mechanism
	words := append([]string{m.Value, r.Metadata.Name}, m.Aliases...)
	if v, is := r.Drawn["variant"].(string); is {
		words = append(words, v)
	}
	return slices.DeleteFunc(words, func(w string) bool { return nothing(w) || len(w) < 4 })
}

// contains reports whether a text has the words of another, in their order and beside each other.
func contains(text, phrase string) bool {
	p := strings.Join(words(phrase), " ")
	return p != "" && strings.Contains(" "+strings.Join(words(text), " ")+" ", " "+p+" ")
}

// leaksOf looks at an object's names: its own, its namespace's, of labels and annotations, containers and volumes.
func (l *linter) leaksOf(object *node, path string, secrets []string) {
	look := func(n *node, path, text string) {
		for _, s := range secrets {
			if contains(text, s) {
				l.wrong(n, path, "%q gives %q away: the candidate reads it", shorten(text), s)
			}
		}
	}
	meta := object.find("metadata")
	for _, e := range meta.keys {
		if text, is := e.value.value.(string); is {
			look(e.value, path+".metadata."+e.name, text)
		}
		for _, pair := range e.value.keys { // labels, annotations
			value, _ := pair.value.value.(string)
			look(pair.value, path+".metadata."+e.name, pair.name+" "+value)
		}
	}
	l.named(object, path, look)
}

// named are the names further inside.
func (l *linter) named(n *node, path string, look func(*node, string, string)) {
	for _, e := range n.keys {
		inner := expr.Join(path, e.name)
		if text, is := e.value.value.(string); is && e.name == "name" {
			look(e.value, inner, text)
		}
		l.named(e.value, inner, look)
	}
	for i, item := range n.items {
		l.named(item, fmt.Sprintf("%s[%d]", path, i), look)
	}
}

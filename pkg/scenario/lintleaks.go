package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// telling are words that, in a name, reveal that something was broken on purpose.
var telling = []string{
	"fault", "faulty", "broken", "inject", "injected", "gpufault", "scenario", "wrong", "chaos", "sabotage", "bug",
	"buggy", "solution", "decoy", "gpu-fault",
}

// tellsOfFault matches a sentence that reveals the fault in the card's description of the simulated parts.
var tellsOfFault = regexp.MustCompile(`(?i)\b(fault|error|defect)s?\b`)

// leaks finds words from the answer in text that the candidate reads.
func (l *linter) leaks(r *Resolved) {
	root := r.source.root
	secrets := secretWords(r)
	for _, name := range []string{"title", "briefing", "simulated"} {
		n := root.find("public", name)
		text, _ := n.value.(string)
		for _, s := range secrets {
			if contains(text, s) {
				l.wrong(n, "public."+name, "contains %q, which reveals the answer", s)
			}
		}
	}
	if n := root.find("public", "simulated"); n != nil {
		if text, _ := n.value.(string); tellsOfFault.MatchString(text) {
			l.wrong(n, "public.simulated", "reveals that an error is simulated: name the parts of the lab that must not be "+
				"changed, but not their purpose")
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

// secretWords returns the words that reveal the answer: the mechanism in all its forms, and the name of the variant.
func secretWords(r *Resolved) []string {
	m := r.Sealed.RootCause.Mechanism
	words := append([]string{m.Value, r.Metadata.Name}, m.Aliases...)
	if v, is := r.Drawn["variant"].(string); is {
		words = append(words, v)
	}
	return slices.DeleteFunc(words, func(w string) bool { return nothing(w) || len(w) < 4 })
}

// contains reports whether a string contains the words of another string, adjacent and in order.
func contains(text, phrase string) bool {
	p := strings.Join(words(phrase), " ")
	return p != "" && strings.Contains(" "+strings.Join(words(text), " ")+" ", " "+p+" ")
}

// leaksOf checks the names in an object: its name, and those of its namespace, labels, annotations, containers and
// volumes.
func (l *linter) leaksOf(object *node, path string, secrets []string) {
	look := func(n *node, path, text string) {
		for _, s := range secrets {
			if contains(text, s) {
				l.wrong(n, path, "%q reveals %q to the candidate", shorten(text), s)
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

// named checks the names in nested values.
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

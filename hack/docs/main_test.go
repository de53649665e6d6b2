package main

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// What is written about a command or an XID is what the program says. `go run ./hack/docs`, or -update, writes the
// pages anew.
func TestPagesAreCurrent(t *testing.T) {
	t.Parallel()
	all := pages()
	for name, text := range all {
		golden.Compare(t, "../../../docs/"+name, text)
	}
	for _, name := range stale("../../docs", all) {
		t.Errorf("docs/%s is of no command that there is: `go run ./hack/docs` deletes it", name)
	}
}

// Nothing of the machine that the pages are made on is in them.
func TestPagesAreTheSameEverywhere(t *testing.T) {
	t.Setenv("HOME", "/home/somebody")
	for name, text := range pages() {
		for _, part := range []string{"/root", "/home"} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %q in it", name, part)
			}
		}
	}
}

func TestEscape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"_TRANSPORT":                 `\_TRANSPORT`,
		"NODE_LOSS <x> [a|b]":        `NODE_LOSS \<x\> \[a\|b\]`,
		"see `a_b|c` and *.yaml":     "see `a_b\\|c` and \\*.yaml",
		`PCI:[^)]+\): 79,.*`:         `PCI:\[^)\]+\\): 79,.\*`,
		"nothing that means a thing": "nothing that means a thing",
	} {
		if got := escape(text); got != want {
			t.Errorf("%s: %s, wanted %s", text, got, want)
		}
	}
}

func TestAnchor(t *testing.T) {
	t.Parallel()
	for heading, want := range map[string]string{
		"scenario start": "scenario-start", "Is it safe? (yes)": "is-it-safe-yes",
		"What `--via` does": "what---via-does",
	} {
		if got := anchor(heading); got != want {
			t.Errorf("%s: %s, wanted %s", heading, got, want)
		}
	}
}

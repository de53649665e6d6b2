package check

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	// maxSaw is the maximum length of the evidence, maxValue the maximum length of each value, and maxShown the maximum
	// number of list items.
	maxSaw   = 400
	maxValue = 160
	maxShown = 4
)

// path matches a variable with fields, such as o.status.conditions[0].type. It excludes function calls.
var (
	path = regexp.MustCompile(
		`\b([a-zA-Z_]\w*)((?:\.[a-zA-Z_]\w*|\[(?:\d+|"[^"]*"|'[^']*')\]|\.\?[a-zA-Z_]\w*)+)(\s*\()?`,
	)
	part  = regexp.MustCompile(`\.\??([a-zA-Z_]\w*)|\[(\d+)\]|\["([^"]*)"\]|\['([^']*)'\]`)
	macro = regexp.MustCompile(`\blist\s*\.\s*(?:all|exists|exists_one|existsOne|filter|map)\s*\(\s*([a-zA-Z_]\w*)\s*,`)
)

// evidence returns the evidence that a check reports: the values that its expression compares, and the state of its
// source.
func evidence(check scenario.Check, seen view) string {
	var parts []string
	if o, is := seen.vars["o"].(map[string]any); is {
		parts = append(parts, values("o", o, check.Expect)...)
	}
	if list, is := seen.vars["list"].([]any); is && check.Objects != nil {
		parts = append(parts, valuesOfList(list, check.Expect)...)
	}
	if seen.evidence != "" {
		parts = append(parts, seen.evidence)
	}
	return cut(strings.Join(parts, "; "), maxSaw)
}

// values returns the fields of an object that an expression refers to, with their values.
func values(name string, o map[string]any, expect string) []string {
	var all []string
	shown := map[string]bool{}
	for _, m := range path.FindAllStringSubmatch(expect, -1) {
		steps := part.FindAllStringSubmatch(m[2], -1)
		if m[3] != "" && len(steps) > 0 { // a function, such as size()
			steps = steps[:len(steps)-1]
		}
		if m[1] != name || len(steps) == 0 {
			continue
		}
		text := name + value(o, steps)
		if !shown[text] && len(all) < maxShown {
			shown[text] = true
			all = append(all, text)
		}
	}
	return all
}

// value returns the value at a path, as far as the path exists: .spec.replicas = 0.
func value(o map[string]any, steps [][]string) string {
	at, current, secret := "", any(o), o["kind"] == "Secret"
	for _, s := range steps {
		var is bool
		at += s[0]
		if key := s[1] + s[3] + s[4]; secret && (key == "data" || key == "stringData") {
			return at + " is not shown"
		}
		if current, is = follow(current, s); !is {
			return at + " does not exist"
		}
	}
	raw, err := json.Marshal(current)
	if err != nil {
		return at
	}
	return at + " = " + cut(string(raw), maxValue)
}

// follow returns the value one step below a value.
func follow(value any, step []string) (any, bool) {
	if step[2] != "" {
		list, _ := value.([]any)
		i, err := strconv.Atoi(step[2])
		if err != nil || i >= len(list) {
			return nil, false
		}
		return list[i], true
	}
	m, _ := value.(map[string]any)
	next, is := m[step[1]+step[3]+step[4]]
	return next, is
}

// valuesOfList returns, for the first objects in a list, the fields that macros in an expression refer to.
func valuesOfList(list []any, expect string) []string {
	var all []string
	for _, m := range macro.FindAllStringSubmatch(expect, -1) {
		for i, item := range list {
			o, is := item.(map[string]any)
			if !is || i >= maxShown {
				break
			}
			if fields := values(m[1], o, expect); len(fields) > 0 {
				name, _ := nested(o, "metadata", "name").(string)
				all = append(all, name+": "+strings.Join(fields, ", "))
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// states returns the states of the objects in a list.
func states(list []any) string {
	if len(list) == 0 {
		return "no objects"
	}
	var all []string
	for i, item := range list {
		o, is := item.(map[string]any)
		if !is || i >= maxShown {
			all = append(all, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		all = append(all, state(o))
	}
	return fmt.Sprintf("%d: %s", len(list), strings.Join(all, ", "))
}

// state describes an object briefly: Pod trainer-0 Pending: Unschedulable: 0/2 nodes are available.
func state(o map[string]any) string {
	name, _ := nested(o, "metadata", "name").(string)
	words := fmt.Sprintf("%v %s", o["kind"], name)
	if o["kind"] == "Pod" {
		pod := &corev1.Pod{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o, pod) == nil {
			return words + " " + cut(podState(pod), maxValue)
		}
	}
	if wanted, ready := nested(o, "spec", "replicas"), nested(o, "status", "readyReplicas"); wanted != nil {
		if ready == nil {
			ready = 0
		}
		return fmt.Sprintf("%s %v/%v ready", words, ready, wanted)
	}
	return words
}

// short returns an expression on one line.
func short(text string) string { return cut(strings.Join(strings.Fields(text), " "), maxValue) }

// cut shortens a string at a rune boundary.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// Package words has the small pieces that sentences of findings are made of, and the limits of quotations.
package words

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Joined puts commas between words.
func Joined(all []string) string { return strings.Join(all, ", ") }

// SortedKeys returns the keys of a map, sorted.
func SortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// OrNone returns the text, or (none) in its place.
func OrNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// FirstLine returns the first line of a text, kept short.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return Clip(line)
}

// Numbers puts commas between numbers.
func Numbers(codes []int) string {
	var all []string
	for _, code := range codes {
		all = append(all, fmt.Sprint(code))
	}
	return Joined(all)
}

const (
	// limit is how many bytes of a quotation are kept.
	limit = 2 << 10
)

// Clip keeps evidence short.
func Clip(text string) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// Sentence begins with a capital letter and ends with a full stop, but for a path or a setting at its end, which would
// be copied with it.
func Sentence(text string) string {
	if text == "" {
		return ""
	}
	last := text[strings.LastIndexByte(text, ' ')+1:]
	if !strings.ContainsAny(last, "=/") && !strings.HasSuffix(text, ".") {
		text += "."
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// Cut keeps a quotation short: lines over 2 KB end in an ellipsis.
func Cut(text string) string {
	const longest = 2 << 10
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// Few is how many nodes or pods are quoted.
const Few = 4

// InWords prints an amount with its unit.
func InWords(name corev1.ResourceName, n int64) string {
	switch name {
	case corev1.ResourceCPU:
		return fmt.Sprintf("%dm", n)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return fmt.Sprintf("%dMi", n>>20)
	}
	return fmt.Sprint(n)
}

// AgeText prints an age as kubectl does, in at most two units.
func AgeText(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

// LastLine returns the last line of a text.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// ContainsAny reports whether a text has one of the parts in it.
func ContainsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

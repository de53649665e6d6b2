// Package words formats parts of the sentences in findings and limits the length of quotations.
package words

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Joined joins strings with commas.
func Joined(all []string) string { return strings.Join(all, ", ") }

// SortedKeys returns the sorted keys of a map.
func SortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// OrNone returns the string, or "(none)" if it is empty.
func OrNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// FirstLine returns the first line of a string, shortened.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return Clip(line)
}

// Numbers joins numbers with commas.
func Numbers(codes []int) string {
	var all []string
	for _, code := range codes {
		all = append(all, fmt.Sprint(code))
	}
	return Joined(all)
}

// limit is the maximum length of a quotation in bytes.
const limit = 2 << 10

// Clip shortens a quotation. A quotation longer than 2 KiB ends in an ellipsis.
func Clip(text string) string { return ClipTo(text, limit) }

// ClipTo shortens a string to the given number of bytes, plus an ellipsis.
func ClipTo(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// Sentence capitalizes the string and appends a full stop. It omits the full stop after a path or setting, because
// users may copy it.
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

// Few is the maximum number of nodes or pods to quote.
const Few = 4

// InWords formats an amount with its unit.
func InWords(name corev1.ResourceName, n int64) string {
	switch name {
	case corev1.ResourceCPU:
		return fmt.Sprintf("%dm", n)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return fmt.Sprintf("%dMi", n>>20)
	}
	return fmt.Sprint(n)
}

// AgeText formats an age as kubectl does, with at most two units.
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

// LastLine returns the last line of a string.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// ContainsAny reports whether a string contains any of the parts.
func ContainsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

package doctor

import (
	"regexp"
	"slices"
	"strconv"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// xidPatterns are how agents name XIDs: "Xid (PCI:0000:17:00): 79,", "NvidiaXID79Error", "ErrorCode:79".
var xidPatterns = []*regexp.Regexp{
	regexp.MustCompile(`(?i)Xid \([^)]*\): (\d{1,4})`), regexp.MustCompile(`(?i)Xid[ =:]{0,3}(\d{1,4})`),
	regexp.MustCompile(`ErrorCode:(\d{1,4})\b`),
}

// xidsIn returns the XIDs that agents name in conditions.
func xidsIn(text string) []int {
	var all []int
	for _, pattern := range xidPatterns {
		for _, m := range pattern.FindAllStringSubmatch(text, 64) {
			if code, err := strconv.Atoi(m[1]); err == nil && !slices.Contains(all, code) {
				all = append(all, code)
			}
		}
	}
	return all
}

// xidSeverity returns how bad a code is for the node's other users; empty when the code is not known.
func xidSeverity(code int) Severity {
	known, ok := xid.Lookup(code)
	if !ok {
		return ""
	}
	switch known.Class {
	case "gpu_fatal":
		return Error
	case "app", "info", "unused":
		return Info
	}
	return Warning
}

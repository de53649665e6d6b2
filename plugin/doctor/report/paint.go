package report

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// paint colors text for terminals. The zero value leaves text unchanged.
type paint struct{ on bool }

// ECMA-48 codes. Every terminal supports these sixteen colors, in the shades of its theme.
const (
	bold   = "1"
	faint  = "2"
	red    = "1;31"
	green  = "32"
	yellow = "1;33"
	blue   = "34"
)

func (p paint) in(code, text string) string {
	if !p.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p paint) severity(s finding.Severity, text string) string {
	switch s {
	case finding.Error:
		return p.in(red, text)
	case finding.Warning:
		return p.in(yellow, text)
	}
	return p.in(blue, text)
}

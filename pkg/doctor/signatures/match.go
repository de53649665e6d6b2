package signatures

import (
	"regexp/syntax"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Line is one line of evidence.
type Line struct {
	Place    Place
	Evidence finding.Evidence
	// Container is the container that the line is about, if any.
	Container string
}

// Match is a signature that matches a line.
type Match struct {
	*Signature
	Line   Line
	groups []string
}

// Groups returns what the groups of the regular expression matched. The first is the whole match.
func (m Match) Groups() []string { return m.groups }

// Best returns the best match of the signatures in the lines of one pod or node: a likely one rather than a possible one,
// an earlier line rather than a later one.
func Best(all []*Signature, lines []Line) (Match, bool) {
	var best Match
	for _, line := range lines {
		lower := strings.ToLower(line.Evidence.Text)
		for _, s := range all {
			if best.Signature != nil && (best.Confidence == finding.Likely || s.Confidence != finding.Likely) ||
				!s.isFor(line.Place) || s.literal != "" && !strings.Contains(lower, s.literal) {
				continue
			}
			groups, ok := s.find(line.Evidence.Text)
			if !ok || s.also != nil && !matchesAny(s.also, lines) || s.unless != nil && matchesAny(s.unless, lines) {
				continue
			}
			best = Match{s, line, groups}
		}
	}
	return best, best.Signature != nil
}

func (s *Signature) isFor(place Place) bool {
	for _, p := range s.In {
		if p == place {
			return true
		}
	}
	return false
}

// find returns the groups of a line that the signature matches.
func (s *Signature) find(line string) ([]string, bool) {
	for one := range strings.Lines(line) {
		if m := s.match.FindStringSubmatch(one); m != nil {
			return m, true
		}
	}
	m := s.match.FindStringSubmatch(line)
	return m, m != nil
}

func matchesAny(re interface{ MatchString(s string) bool }, lines []Line) bool {
	for _, line := range lines {
		if re.MatchString(line.Evidence.Text) {
			return true
		}
	}
	return false
}

// literalOf returns the longest text, in lower case, that each match of a regular expression contains.
func literalOf(expression string) string {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return ""
	}
	return longestLiteral(parsed.Simplify())
}

func longestLiteral(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		return strings.ToLower(string(re.Rune))
	case syntax.OpCapture, syntax.OpPlus:
		return longestLiteral(re.Sub[0])
	case syntax.OpConcat:
		best := ""
		for _, sub := range re.Sub {
			if text := longestLiteral(sub); len(text) > len(best) {
				best = text
			}
		}
		return best
	default:
		return ""
	}
}

package signatures

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Line is one line of evidence.
type Line struct {
	Place    Place
	Evidence finding.Evidence
	// Container is the container that the line is about, if any.
	Container string
	// Compared is true for a fact that was derived from several objects. If a signature's Also pattern matches such a
	// fact, the finding also quotes the fact.
	Compared bool
}

// Match is a signature that matches a line.
type Match struct {
	*Signature
	Line   Line
	groups []string
	// Also is the line that the signature's Also pattern matches, if any. For a signature with a defect and no such
	// pattern, it is the line that contains the release.
	Also *Line
	// Version is the release that has the signature's defect.
	Version string
}

// Groups returns the groups matched by Match, followed by those matched by Also. The first is the whole match.
func (m Match) Groups() []string { return m.groups }

// Set is a list of signatures with an index of the literal strings that their messages contain. The index is needed
// because a large cluster has millions of lines, few of which contain any of these strings.
type Set struct {
	all []*Signature
	// by maps the first bytes of each literal to the literals that begin with these bytes, and to the numbers of their
	// signatures.
	by     map[[prefix]byte][]entry
	starts [1 << 16]bool // whether a literal begins with these two bytes
	always []int         // signatures without a literal that all their matches contain
	names  []string      // the names of images with defects
	// running contains the signatures that also apply to running pods, and decisive those that name the root cause
	// regardless of other findings.
	running, decisive *Set
}

type entry struct {
	text   string
	number int
}

// prefix is the number of bytes of a literal that the index uses.
const prefix = 3

// NewSet returns a set of signatures. Earlier signatures take precedence over later ones.
func NewSet(all []*Signature) *Set {
	set := newSet(all)
	set.running = newSet(keep(all, func(s *Signature) bool { return s.Runs }))
	decisive := func(s *Signature) bool { return s.Decisive }
	set.decisive, set.running.decisive = newSet(keep(all, decisive)), newSet(keep(set.running.all, decisive))
	return set
}

func keep(all []*Signature, when func(*Signature) bool) []*Signature {
	var some []*Signature
	for _, s := range all {
		if when(s) {
			some = append(some, s)
		}
	}
	return some
}

func newSet(all []*Signature) *Set {
	set := &Set{all: all, by: map[[prefix]byte][]entry{}}
	for i, s := range all {
		if s.Defect != nil {
			set.names = append(set.names, s.Defect.Images...)
		}
		if len(s.literals) == 0 {
			set.always = append(set.always, i)
		}
		for _, text := range s.literals {
			key := [prefix]byte([]byte(text[:prefix]))
			set.by[key] = append(set.by[key], entry{text, i})
			set.starts[int(text[0])<<8|int(text[1])] = true
		}
	}
	slices.Sort(set.names)
	set.names = slices.Compact(set.names)
	return set
}

// Running returns the signatures that also apply to running pods.
func (set *Set) Running() *Set { return set.running }

// Decisive returns the signatures that name the root cause regardless of other findings.
func (set *Set) Decisive() *Set { return set.decisive }

// candidates returns the sorted numbers of the signatures that may match a line.
func (set *Set) candidates(line string) []int {
	found := set.always
	lower := strings.ToLower(line)
	own := false
	for i := 0; i+prefix <= len(lower); i++ {
		if !set.starts[int(lower[i])<<8|int(lower[i+1])] {
			continue
		}
		for _, e := range set.by[[prefix]byte([]byte(lower[i:i+prefix]))] {
			if strings.HasPrefix(lower[i:], e.text) && !slices.Contains(found, e.number) {
				if !own {
					found, own = slices.Clone(found), true
				}
				found = append(found, e.number)
			}
		}
	}
	if own {
		slices.Sort(found)
	}
	return found
}

// Best returns the best matches of the signatures in the lines of one pod or node. It prefers likely signatures to
// possible ones, and earlier lines to later ones. For one line, it prefers a decisive signature that a fact confirms
// (Signature.Also). If there are two matches and neither is likely, it returns both.
func (set *Set) Best(lines []Line) []Match {
	var all []Match
	facts := slices.ContainsFunc(lines, func(line Line) bool { return line.Place == Spec })
	for _, line := range lines {
		var likely []Match
		for _, i := range set.candidates(line.Evidence.Text) {
			s := set.all[i]
			if len(likely) > 0 && (s.also == nil || !s.Decisive) {
				continue
			}
			if !s.isFor(line.Place) || s.Confidence != finding.Likely && len(all) == 2 ||
				slices.ContainsFunc(all, func(m Match) bool { return m.Signature == s }) {
				continue
			}
			groups, ok := s.find(line.Evidence.Text)
			if !ok {
				continue
			}
			m := Match{Signature: s, Line: line, groups: groups}
			if s.Defect != nil {
				if m.Also, m.Version = s.Defect.in(lines); m.Also == nil {
					continue
				}
			}
			if s.also != nil {
				if m.Also = lineOf(s.also.compiled(), lines); m.Also == nil {
					continue
				}
				m.groups = append(m.groups, s.also.compiled().FindStringSubmatch(m.Also.Evidence.Text)[1:]...)
			}
			if s.unless != nil && lineOf(s.unless.compiled(), lines) != nil {
				continue
			}
			if s.Confidence == finding.Likely {
				if m.Also != nil && (len(likely) == 0 || m.Also.Place == Spec) || !facts {
					return []Match{m}
				}
				if len(likely) == 0 {
					likely = []Match{m}
				}
				continue
			}
			all = append(all, m)
		}
		if len(likely) > 0 {
			return likely
		}
	}
	return all
}

func (s *Signature) isFor(place Place) bool {
	for _, p := range s.In {
		if p == place {
			return true
		}
	}
	return false
}

// find returns the groups of the signature's match in a line.
func (s *Signature) find(line string) ([]string, bool) {
	match := s.match.compiled()
	for one := range strings.Lines(line) {
		if m := match.FindStringSubmatch(one); m != nil {
			return m, true
		}
	}
	m := match.FindStringSubmatch(line)
	return m, m != nil
}

// lineOf returns the first line that matches, or nil.
func lineOf(re *regexp.Regexp, lines []Line) *Line {
	for i := range lines {
		if re.MatchString(lines[i].Evidence.Text) {
			return &lines[i]
		}
	}
	return nil
}

// literalsOf returns lowercase strings such that each match of a regular expression contains at least one of them. It
// returns none if there are no such strings with at least prefix bytes.
func literalsOf(expression string) []string {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	return literals(parsed.Simplify())
}

func literals(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if text := strings.ToLower(string(re.Rune)); len(text) >= prefix {
			return []string{text}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literals(re.Sub[0])
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			some := literals(sub)
			if some == nil {
				return nil
			}
			all = append(all, some...)
		}
		return all
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if some := literals(sub); some != nil && (best == nil || shortest(some) > shortest(best)) {
				best = some
			}
		}
		return best
	default:
	}
	return nil
}

func shortest(all []string) int {
	least := len(all[0])
	for _, text := range all {
		least = min(least, len(text))
	}
	return least
}

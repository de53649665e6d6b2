package cudafault

import (
	"errors"
	"strings"
)

// checkGlob returns an error if the shim would interpret the pattern differently than intended.
func checkGlob(pattern string) error {
	for rest := pattern; ; {
		_, set, found := strings.Cut(rest, "[")
		if !found {
			return nil
		}
		_, end := matchSet(set, 'x')
		if end < 0 {
			return errors.New("a bracket is not closed; globs support * ? [a-z] and [!a-z]")
		}
		rest = set[end:]
	}
}

// matchGlob reports whether the glob (* ? [a-z] [!a-z]) matches the whole name. It is equivalent to gf_glob in
// shim/pure.h.
func matchGlob(pattern, name string) bool {
	p, s, star, back := 0, 0, -1, 0
	for p < len(pattern) || s < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			star, back = p, s
			continue
		}
		if next := matchOne(pattern[p:], name[s:]); next > 0 {
			p, s = p+next, s+1
			continue
		}
		if star < 0 || back == len(name) {
			return false
		}
		back++
		p, s = star, back
	}
	return true
}

// matchOne returns the length of the first pattern element if it matches the first byte of the name, or 0 otherwise.
func matchOne(pattern, name string) int {
	if pattern == "" || name == "" {
		return 0
	}
	if pattern[0] == '[' {
		if in, end := matchSet(pattern[1:], name[0]); end >= 0 {
			if in {
				return 1 + end
			}
			return 0
		}
	}
	if pattern[0] == '?' || pattern[0] == name[0] {
		return 1
	}
	return 0
}

// matchSet reports whether c is in the set that follows an opening bracket, and returns the end of the set, or -1 if
// the set is not closed.
func matchSet(set string, c byte) (in bool, end int) {
	i, not := 0, false
	if set != "" && (set[0] == '!' || set[0] == '^') {
		i, not = 1, true
	}
	for first := true; i < len(set) && (first || set[i] != ']'); first = false {
		low, high := set[i], set[i]
		i++
		if i+1 < len(set) && set[i] == '-' && set[i+1] != ']' {
			high = set[i+1]
			i += 2
		}
		in = in || low <= c && c <= high
	}
	if i >= len(set) {
		return false, -1
	}
	return in != not, i + 1
}

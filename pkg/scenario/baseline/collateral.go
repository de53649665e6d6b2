package baseline

import (
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Collateral returns the differences that are not allowed and do not affect our own objects. If only some fields of a
// changed object are allowed, the result contains the other fields. In allowed, kind, namespace and name may contain *,
// as in path.Match; ours may be nil.
func Collateral(differences []Difference, allowed []scenario.Allowed, ours func(scenario.Ref) bool) []Difference {
	var left []Difference
	for _, d := range differences {
		if d.Note != "" {
			left = append(left, d)
			continue
		}
		if ours != nil && ours(d.Ref) {
			continue
		}
		matching := slices.DeleteFunc(slices.Clone(allowed),
			func(a scenario.Allowed) bool { return !Concerns(a, d.Ref) })
		switch d.Kind {
		case Created:
			if !slices.ContainsFunc(matching, func(a scenario.Allowed) bool { return a.Created }) {
				left = append(left, d)
			}
		case Deleted:
			if !slices.ContainsFunc(matching, func(a scenario.Allowed) bool { return a.Deleted }) {
				left = append(left, d)
			}
		default:
			if d, damaged := without(d, matching); damaged {
				left = append(left, d)
			}
		}
	}
	return left
}

// Concerns reports whether a rule applies to an object.
func Concerns(a scenario.Allowed, ref scenario.Ref) bool {
	return matches(a.Kind, ref.Kind) && matches(a.Namespace, ref.Namespace) && matches(a.Name, ref.Name)
}

func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// without returns the difference without the allowed fields.
func without(d Difference, allowed []scenario.Allowed) (Difference, bool) {
	edits := d.edits
	if edits == nil { // the difference was stored and read again
		for _, field := range d.Fields {
			edits = append(edits, edit{field: field})
		}
	}
	var rest []edit
	for _, e := range edits {
		if !slices.ContainsFunc(allowed, func(a scenario.Allowed) bool { return fieldAllowed(a.Fields, e.field) }) {
			rest = append(rest, e)
		}
	}
	if len(rest) == len(edits) {
		return d, len(rest) > 0
	}
	return changed(keyOf(d.Ref), &object{version: versionOf(d.Ref)}, rest), len(rest) > 0
}

func versionOf(ref scenario.Ref) string {
	return ref.APIVersion[strings.LastIndexByte(ref.APIVersion, '/')+1:]
}

// fieldAllowed reports whether the field equals or is below one of the fields, in which * matches any name. An empty
// list allows all fields except for finalizers, because an object with a new finalizer could not be deleted at the end.
func fieldAllowed(fields []string, field string) bool {
	if len(fields) == 0 {
		return field != "metadata.finalizers"
	}
	at := segments(field)
	return slices.ContainsFunc(fields, func(f string) bool {
		allowed := segments(f)
		return len(allowed) <= len(at) && slices.EqualFunc(allowed, at[:len(allowed)],
			func(pattern, name string) bool { return pattern == "*" || pattern == name })
	})
}

// segments splits a path: metadata.labels["example.com/team"] becomes metadata, labels and example.com/team.
func segments(field string) []string {
	var all []string
	for field != "" {
		var name string
		if field[0] == '[' {
			if end := strings.IndexByte(field, ']'); end > 0 {
				name, field = strings.Trim(field[1:end], `"'`), strings.TrimPrefix(field[end+1:], ".")
				all = append(all, name)
				continue
			}
		}
		end := strings.IndexAny(field[1:], ".[") + 1
		if end == 0 {
			return append(all, field)
		}
		name, field = field[:end], strings.TrimPrefix(field[end:], ".")
		all = append(all, name)
	}
	return all
}

package fieldowner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Set is a set of fields: each member is the way to it, its steps joined.
type Set map[string]bool

const stepEnd = "\x00"

// maxDepth bounds how deep fields lie: those of a pod template have ten steps.
const maxDepth = 100

// Fields returns those of all the entries that are meant.
func Fields(entries []metav1.ManagedFieldsEntry, which func(metav1.ManagedFieldsEntry) bool) Set {
	set := Set{}
	for _, entry := range entries {
		if which(entry) {
			set.Add(fieldsOf(entry))
		}
	}
	return set
}

func fieldsOf(entry metav1.ManagedFieldsEntry) Set {
	if entry.FieldsV1 == nil {
		return Set{}
	}
	return Parse(entry.FieldsV1.GetRawBytes())
}

// Parse reads FieldsV1: nested objects, in which a leaf is empty, and "." stands for a field that has owned ones below
// it. What is none makes an empty set.
func Parse(raw []byte) Set {
	set := Set{}
	var tree map[string]any
	if json.Unmarshal(raw, &tree) != nil {
		return set
	}
	set.collect("", tree)
	delete(set, "") // the object itself, which nobody owns
	return set
}

func (s Set) collect(prefix string, tree map[string]any) {
	for name, below := range tree {
		children, _ := below.(map[string]any)
		switch {
		case name == ".":
			s[prefix] = true
		case len(children) == 0:
			s[prefix+name+stepEnd] = true
		default:
			s.collect(prefix+name+stepEnd, children)
		}
	}
}

// Validate refuses what is no FieldsV1.
func Validate(raw []byte) error {
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return fmt.Errorf("owned fields cannot be read: %w", err)
	}
	if len(tree) == 0 {
		return errors.New("no field is owned")
	}
	return validateTree(tree, maxDepth)
}

func validateTree(tree map[string]any, depth int) error {
	if depth == 0 {
		return errors.New("owned fields lie too deep")
	}
	for name, below := range tree {
		kind, rest, _ := strings.Cut(name, ":")
		if name != "." && (!slices.Contains([]string{"f", "k", "v", "i"}, kind) || rest == "") ||
			strings.Contains(name, stepEnd) {
			return fmt.Errorf("%q is no step to an owned field", name)
		}
		children, ok := below.(map[string]any)
		if !ok || name == "." && len(children) > 0 {
			return fmt.Errorf("%q: owned fields have no values", name)
		}
		if err := validateTree(children, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// Add puts the members of another set in.
func (s Set) Add(other Set) { maps.Copy(s, other) }

// Minus returns a set without the members of another.
func (s Set) Minus(other Set) Set {
	rest := Set{}
	for member := range s {
		if !other[member] {
			rest[member] = true
		}
	}
	return rest
}

// Below returns the members at a field, whose steps are as in FieldsV1 (`f:spec`, `k:{"name":"main"}`), and below it.
func (s Set) Below(steps ...string) Set {
	prefix := strings.Join(steps, stepEnd) + stepEnd
	below := Set{}
	for member := range s {
		if strings.HasPrefix(member, prefix) {
			below[member] = true
		}
	}
	return below
}

// Elements returns the members that are elements of lists (`k:{"name":"main"}`), each by its steps.
func (s Set) Elements() [][]string {
	var all [][]string
	for _, member := range slices.Sorted(maps.Keys(s)) {
		steps := strings.Split(strings.TrimSuffix(member, stepEnd), stepEnd)
		if strings.HasPrefix(steps[len(steps)-1], "k:") {
			all = append(all, steps)
		}
	}
	return all
}

// Around returns what the fields lie in: objects, lists and their elements. Who puts back what was removed with all
// that it lay in owns those as well, and who applied it (server-side apply) had not.
func (s Set) Around() Set {
	around := Set{}
	for member := range s {
		for {
			i := strings.LastIndex(strings.TrimSuffix(member, stepEnd), stepEnd)
			if i < 0 {
				break
			}
			member = member[:i+len(stepEnd)]
			around[member] = true
		}
	}
	return around
}

func (s Set) and(other Set) Set {
	both := Set{}
	for member := range s {
		if other[member] {
			both[member] = true
		}
	}
	return both
}

// Sum returns a hash of the members, in hexadecimal.
func (s Set) Sum() string {
	sum := sha256.Sum256(s.Encode())
	return hex.EncodeToString(sum[:])
}

// Encode writes FieldsV1.
func (s Set) Encode() json.RawMessage {
	tree := map[string]any{}
	for member := range s {
		at := tree
		for step := range strings.SplitSeq(strings.TrimSuffix(member, stepEnd), stepEnd) {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
	}
	for member := range s { // a member with others below it says so
		at := tree
		for step := range strings.SplitSeq(strings.TrimSuffix(member, stepEnd), stepEnd) {
			at, _ = at[step].(map[string]any)
		}
		if len(at) > 0 {
			at["."] = map[string]any{}
		}
	}
	text, err := json.Marshal(tree)
	if err != nil { // maps of strings can always be written
		return nil
	}
	return text
}

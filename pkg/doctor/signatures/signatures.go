// Package signatures knows error messages from the field: what they mean, their cause, and how to fix it.
//
// A signature is a row of data in one of the YAML files of this package. A finding about a symptom, such as a pod that
// crashes, takes its title, cause and fix from the signature that matches the pod's messages. To add knowledge, add a
// row with an example of the message.
package signatures

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Place is a kind of evidence that a message may be in.
type Place string

// The places.
const (
	Event  Place = "event"  // an event of the pod or node
	Status Place = "status" // the status of a pod or of one of its containers
	Log    Place = "log"    // the log of a container
	Kernel Place = "kernel" // the kernel log of the node
	Unit   Place = "unit"   // the journal of a systemd unit of the node
)

// Running marks findings about pods that run: only signatures with Runs match.
const Running = "running"

// Fix is a fix for one platform.
type Fix struct {
	Fix      string   `json:"fix"`
	Commands []string `json:"commands,omitempty"`
}

// Signature is what is known of one error message.
type Signature struct {
	ID string `json:"id"`
	// Match is a regular expression (RE2) for a line of the message. {1} in Title, Cause, Fix and Commands is its first
	// group.
	Match string `json:"match"`
	// In are the places where the message may be. Empty means event, status and log.
	In []Place `json:"in,omitempty"`
	// Also and Unless match other lines of the same pod or node: one must be there, none may be there.
	Also   string `json:"also,omitempty"`
	Unless string `json:"unless,omitempty"`
	// Runs is true if the message of a pod that runs is a problem as well: a program that does without its GPU.
	Runs  bool          `json:"runs,omitempty"`
	Layer finding.Layer `json:"layer"`
	// Title is a sentence without a period that names the cause: the headline of the finding.
	Title string `json:"title"`
	// Cause explains the title in one or two sentences.
	Cause string `json:"cause"`
	// Confidence is likely if the message has hardly another cause, and possible otherwise.
	Confidence finding.Confidence `json:"confidence"`
	Fix        string             `json:"fix"`
	// Commands may contain {namespace}, {pod}, {container}, {node} and {image}.
	Commands []string `json:"commands,omitempty"`
	// Platforms replace the fix on some platforms: talos, bottlerocket, gke, eks, aks, openshift, k3s, rke2, k0s,
	// microk8s.
	Platforms map[string]Fix `json:"platforms,omitempty"`
	Sources   []string       `json:"sources"`
	// Example is a message from the field. It is also the test of the row.
	Example string `json:"example"`

	match, also, unless *regexp.Regexp
	// literal is a part of each match, in lower case, which avoids most searches. Empty if none is known.
	literal string
}

// File is a file of signatures.
type File struct {
	Signatures []*Signature `json:"signatures"`
}

// Builtin returns the signatures of this program.
var Builtin = sync.OnceValue(func() []*Signature {
	var all []*Signature
	for name, data := range files() {
		some, err := Parse(name, data)
		if err != nil {
			panic(err) // the files are part of the program, and tested
		}
		all = append(all, some...)
	}
	return all
})

// Parse reads a file of signatures. Errors have the line and the column.
func Parse(name string, data []byte) ([]*Signature, error) {
	file, err := scenario.Decode[File](name, data)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i, s := range file.Value.Signatures {
		field, err := s.compile()
		if err == nil && seen[s.ID] {
			field, err = "id", fmt.Errorf("duplicate ID %q", s.ID)
		}
		if err != nil {
			return nil, file.Problem(err, field, "signatures", i, field)
		}
		seen[s.ID] = true
	}
	if len(file.Value.Signatures) == 0 {
		return nil, fmt.Errorf("%s: no signatures", name)
	}
	return file.Value.Signatures, nil
}

var (
	idPattern   = regexp.MustCompile(`^[a-z0-9]+(?:[.-][a-z0-9]+)*$`)
	placeholder = regexp.MustCompile(`\{([a-z]+|\d)\}`)
)

// longest is the maximum length of a regular expression.
const longest = 2000

// compile validates a signature. An error comes with the name of the field.
func (s *Signature) compile() (field string, err error) {
	for _, f := range []struct{ name, value string }{
		{"id", s.ID}, {"match", s.Match}, {"layer", string(s.Layer)}, {"title", s.Title}, {"cause", s.Cause}, {"fix", s.Fix},
		{"example", s.Example},
	} {
		if strings.TrimSpace(f.value) == "" {
			return f.name, fmt.Errorf("missing field %q", f.name)
		}
	}
	if !idPattern.MatchString(s.ID) {
		return "id", fmt.Errorf("invalid ID %q: must be words of lowercase letters and digits, joined by hyphens", s.ID)
	}
	if !slices.Contains(finding.Layers(), s.Layer) {
		return "layer", fmt.Errorf("invalid layer %q: supported values: %s", s.Layer, join(finding.Layers()))
	}
	s.Confidence = cmp.Or(s.Confidence, finding.Possible)
	if s.Confidence != finding.Likely && s.Confidence != finding.Possible {
		return "confidence", fmt.Errorf("invalid confidence %q: supported values: likely, possible", s.Confidence)
	}
	if len(s.In) == 0 {
		s.In = []Place{Event, Status, Log}
	}
	places := []Place{Event, Status, Log, Kernel, Unit}
	for _, p := range s.In {
		if !slices.Contains(places, p) {
			return "in", fmt.Errorf("invalid place %q: supported values: %s", p, join(places))
		}
	}
	for _, e := range []struct {
		field, text string
		to          **regexp.Regexp
	}{{"match", s.Match, &s.match}, {"also", s.Also, &s.also}, {"unless", s.Unless, &s.unless}} {
		if e.text == "" {
			continue
		}
		if len(e.text) > longest {
			return e.field, fmt.Errorf("the regular expression is longer than %d bytes", longest)
		}
		if *e.to, err = regexp.Compile(e.text); err != nil {
			return e.field, fmt.Errorf("invalid regular expression: %w", err)
		}
	}
	if s.match.MatchString("") {
		return "match", fmt.Errorf("the regular expression matches every line")
	}
	s.literal = literalOf(s.Match)
	for platform, fix := range s.Platforms {
		if err := cmp.Or(s.placeholders([]string{fix.Fix}, false), s.placeholders(fix.Commands, true)); err != nil {
			return "platforms", fmt.Errorf("platform %s: %w", platform, err)
		}
	}
	if err := s.placeholders([]string{s.Title, s.Cause, s.Fix}, false); err != nil {
		return "fix", err
	}
	if err := s.placeholders(s.Commands, true); err != nil {
		return "commands", err
	}
	if _, ok := s.find(s.Example); !ok {
		return "example", fmt.Errorf("the regular expression does not match the example")
	}
	return "", nil
}

// placeholders returns an error if texts or commands have a placeholder that nothing fills.
func (s *Signature) placeholders(texts []string, commands bool) error {
	known := []string{"namespace", "pod", "container", "node", "image"}
	for i := range s.match.NumSubexp() {
		known = append(known, fmt.Sprint(i+1))
	}
	for _, text := range texts {
		if at := placeholder.FindStringIndex(text); at != nil && strings.Count(text[:at[0]], "'")%2 == 1 && commands {
			return fmt.Errorf("a placeholder of a command must not be within quotes: %s", text)
		}
		for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(known, m[1]) {
				return fmt.Errorf("unknown placeholder {%s}: supported values: %s", m[1], join(known))
			}
		}
	}
	return nil
}

func join[T ~string](all []T) string {
	var b strings.Builder
	for i, one := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(one))
	}
	return b.String()
}

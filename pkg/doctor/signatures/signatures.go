// Package signatures contains error messages from real clusters, with their meaning, their cause and a fix.
//
// A signature is a row of data in one of the YAML files in this package. A finding about a symptom, such as a crashing
// pod, takes its title, cause and fix from the signature that matches the pod's messages. To add knowledge, add a row
// with an example of the message.
package signatures

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// Place is a kind of evidence that can contain a message.
type Place string

// The places.
const (
	Event  Place = "event"  // an event about the pod or node
	Status Place = "status" // the status of the pod or one of its containers
	Log    Place = "log"    // the log of a container
	Kernel Place = "kernel" // the kernel log of the node
	Unit   Place = "unit"   // the journal of a systemd unit of the node
	// Spec is a fact about the pod or its node, such as an image (see `doctor signatures --help`), or evidence from the
	// check.
	Spec Place = "spec"
)

// Running marks findings about running pods. For these findings, only signatures with Runs match.
const Running = "running"

// Killed and Restarted mark findings about containers that were restarted after a failure. Signatures are matched only
// against the last states of these containers and, for Restarted, against the log of the failed instance. A finding
// marked Restarted counts only if a signature matches.
const (
	Killed    = "killed"
	Restarted = "restarted"
)

// Unmade marks findings about objects whose controllers create no pods. They count even if no signature matches.
const Unmade = "unmade"

// Fix is a fix that applies to one platform.
type Fix struct {
	Fix      string   `json:"fix" yaml:"fix"`
	Commands []string `json:"commands,omitempty" yaml:"commands"`
}

// Signature describes one error message.
type Signature struct {
	ID string `json:"id" yaml:"id"`
	// Match is a regular expression (RE2) for a line of the message. {1} in Title, Cause, Fix and Commands is replaced
	// with its first group. The groups of Also are numbered after those of Match.
	Match string `json:"match" yaml:"match"`
	// In lists the places where the message may occur. Empty means event, status and log.
	In []Place `json:"in,omitempty" yaml:"in"`
	// Also and Unless match other lines from the same pod or node, including facts (Spec). Also must match one of these
	// lines, and Unless must match none.
	Also   string `json:"also,omitempty" yaml:"also"`
	Unless string `json:"unless,omitempty" yaml:"unless"`
	// Defect restricts the signature to certain releases of a program. {version} is the release.
	Defect *Defect `json:"defect,omitempty" yaml:"defect"`
	// Runs is true if the message is also a problem in a running pod, for example because its program runs without the
	// GPU.
	Runs bool `json:"runs,omitempty" yaml:"runs"`
	// Decisive is true if the message names the root cause regardless of other findings: findings that would otherwise
	// explain this one become its consequences.
	Decisive bool          `json:"decisive,omitempty" yaml:"decisive"`
	Layer    finding.Layer `json:"layer" yaml:"layer"`
	// Title names the cause in one sentence without a period. It becomes the title of the finding.
	Title string `json:"title" yaml:"title"`
	// Cause explains the title in one or two sentences.
	Cause string `json:"cause" yaml:"cause"`
	// Confidence is likely if the message has hardly any other cause, and possible otherwise.
	Confidence finding.Confidence `json:"confidence" yaml:"confidence"`
	Fix        string             `json:"fix" yaml:"fix"`
	// Commands may contain {namespace}, {pod}, {container}, {node} and {image}.
	Commands []string `json:"commands,omitempty" yaml:"commands"`
	// Platforms contains the fixes that replace Fix on some platforms: talos, bottlerocket, gke, eks, aks, openshift,
	// k3s, rke2, k0s, microk8s.
	Platforms map[string]Fix `json:"platforms,omitempty" yaml:"platforms"`
	Sources   []string       `json:"sources" yaml:"sources"`
	// Example is a message from a real cluster, and serves as the row's test. The released program does not contain it.
	Example string `json:"example,omitempty" yaml:"example"`

	match, also, unless *pattern
	// literals contains lowercase strings, at least one of which occurs in every match.
	literals []string
}

// File is a file of signatures.
type File struct {
	Signatures []*Signature `json:"signatures" yaml:"signatures"`
}

// Builtin returns the signatures built into this program. Tests verify that the files have no errors.
var Builtin = sync.OnceValue(func() []*Signature {
	all, _ := builtin()
	return all
})

// packedFile is the file embedded in the released program. It contains the signatures without their examples, which are
// only tests, and the literals of each signature, in the same order. It is JSON, which is much faster to parse than
// YAML.
type packedFile struct {
	Signatures []*Signature `json:"signatures"`
	Literals   [][]string   `json:"literals"`
}

// JSON returns this program's signatures in the form in which the released program embeds them.
func JSON() ([]byte, error) {
	file := packedFile{Signatures: slices.Clone(Builtin())}
	if len(file.Signatures) == 0 {
		return nil, errors.New("the signatures have errors: go test ./pkg/doctor/signatures describes them")
	}
	for i, s := range file.Signatures {
		file.Literals = append(file.Literals, s.literals)
		packed := *s
		packed.Example = ""
		file.Signatures[i] = &packed
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(file)
	return b.Bytes(), err
}

// fromJSON parses the output of JSON. It does not validate the signatures, because their files were validated, and does
// not compile regular expressions, because doctor needs few of them.
func fromJSON(data []byte) ([]*Signature, error) {
	var file packedFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	if len(file.Literals) != len(file.Signatures) {
		return nil, errors.New("the number of signatures and the number of literals are different")
	}
	for i, s := range file.Signatures {
		s.literals = file.Literals[i]
		s.match, s.also, s.unless = newPattern(s.Match), newPattern(s.Also), newPattern(s.Unless)
	}
	return file.Signatures, nil
}

// pattern is a regular expression that is compiled when it is first used.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

// newPattern returns a pattern for a valid regular expression, or nil if the expression is empty.
func newPattern(text string) *pattern {
	if text == "" {
		return nil
	}
	return &pattern{text: text}
}

func (p *pattern) compiled() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.text) })
	return p.re
}

// Parse parses a file of signatures. Errors contain the line number.
func Parse(name string, data []byte) ([]*Signature, error) {
	var file File
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, readable(err))
	}
	seen := map[string]bool{}
	for i, s := range file.Signatures {
		if s == nil {
			return nil, fmt.Errorf("%s:%d: empty signature", name, yamlLineOf(data, i))
		}
		field, err := s.compile()
		if err == nil && seen[s.ID] {
			field, err = "id", fmt.Errorf("duplicate ID %q", s.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: signature %q: %s: %w", name, yamlLineOf(data, i), s.ID, field, err)
		}
		seen[s.ID] = true
	}
	if len(file.Signatures) == 0 {
		return nil, fmt.Errorf("%s: no signatures: must be a list under the signatures key", name)
	}
	return file.Signatures, nil
}

// goTypes matches the names of this package's types in messages from the YAML decoder.
var goTypes = regexp.MustCompile(` in type signatures\.\w+| into (?:\[\])?\*?(?:signatures|finding)\.\w+`)

// readable returns an error from the YAML decoder without the names of Go types.
func readable(err error) error {
	text := strings.TrimPrefix(goTypes.ReplaceAllString(err.Error(), ""), "yaml: ")
	return errors.New(strings.Join(strings.Fields(strings.ReplaceAll(text, "not found", "is unknown")), " "))
}

// yamlLineOf returns the line number of a signature in a file, or 0. It parses the file again, so use it only for
// errors.
func yamlLineOf(data []byte, i int) int {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil || len(root.Content) == 0 {
		return 0
	}
	fields := root.Content[0].Content
	for k := 0; k+1 < len(fields); k += 2 {
		if fields[k].Value == "signatures" && i < len(fields[k+1].Content) {
			return fields[k+1].Content[i].Line
		}
	}
	return 0
}

var (
	idPattern   = regexp.MustCompile(`^[a-z0-9]+(?:[.-][a-z0-9]+)*$`)
	placeholder = regexp.MustCompile(`\{([a-z]+|\d)\}`)
)

// longest is the maximum length of a regular expression.
const longest = 2000

// compile validates a signature. If it returns an error, it also returns the name of the invalid field.
func (s *Signature) compile() (field string, err error) {
	for _, f := range []struct{ name, value string }{
		{"id", s.ID}, {"match", s.Match}, {"layer", string(s.Layer)}, {"title", s.Title}, {"cause", s.Cause},
		{"fix", s.Fix},
		{"example", s.Example},
	} {
		if strings.TrimSpace(f.value) == "" {
			return f.name, fmt.Errorf("missing field %q", f.name)
		}
	}
	if !idPattern.MatchString(s.ID) {
		return "id", fmt.Errorf(
			"invalid ID %q: must be words of lowercase letters and digits, joined by hyphens",
			s.ID,
		)
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
	places := []Place{Event, Status, Log, Kernel, Unit, Spec}
	for _, p := range s.In {
		if !slices.Contains(places, p) {
			return "in", fmt.Errorf("invalid place %q: supported values: %s", p, join(places))
		}
	}
	for _, e := range []struct {
		field, text string
		to          **pattern
	}{{"match", s.Match, &s.match}, {"also", s.Also, &s.also}, {"unless", s.Unless, &s.unless}} {
		if e.text == "" {
			continue
		}
		if len(e.text) > longest {
			return e.field, fmt.Errorf("the regular expression is longer than %d bytes", longest)
		}
		if _, err = regexp.Compile(e.text); err != nil {
			return e.field, fmt.Errorf("invalid regular expression: %w", err)
		}
		*e.to = newPattern(e.text)
	}
	if s.match.compiled().MatchString("") {
		return "match", fmt.Errorf("the regular expression matches every line")
	}
	s.literals = literalsOf(s.Match)
	if s.Defect != nil {
		if err := s.Defect.validate(); err != nil {
			return "defect", err
		}
	}
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

// placeholders returns an error if texts or commands contain a placeholder that has no value.
func (s *Signature) placeholders(texts []string, commands bool) error {
	known := []string{"namespace", "pod", "container", "node", "image"}
	if s.Defect != nil {
		known = append(known, "version")
	}
	count := s.match.compiled().NumSubexp()
	if s.also != nil {
		count += s.also.compiled().NumSubexp()
	}
	for i := range count {
		known = append(known, fmt.Sprint(i+1))
	}
	for _, text := range texts {
		if at := placeholder.FindStringIndex(text); at != nil && strings.Count(text[:at[0]], "'")%2 == 1 && commands {
			return fmt.Errorf("a placeholder in a command must not be in quotes: %s", text)
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

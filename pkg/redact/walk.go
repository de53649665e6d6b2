package redact

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Walker removes secrets from values of any type, in place, and counts the removed secrets.
type Walker struct {
	// Removed is the number of secrets that were removed, by location: "pods env", "logs".
	Removed map[string]int
	// Shared is true if values share lists, as thousands of pods from the same template do. Each list is then walked
	// only once. Walked values must not be freed before the walker.
	Shared bool
	seen   map[uintptr]bool
	// known caches the results for strings that occur in many objects.
	known map[call]string
	// names caches the meanings of field and label names, which also occur in many objects.
	names map[string]meaning
}

// meaning describes a value according to its name.
type meaning struct{ secret, group bool }

// maxNames limits the size of Walker.names, because users choose names.
const maxNames = 1 << 16

func (w *Walker) named(name string) meaning {
	known, ok := w.names[name]
	if !ok {
		known = meaning{SecretName(name), secretGroup(name)}
		if len(w.names) < maxNames {
			w.names[name] = known
		}
	}
	return known
}

// call is a key in the cache of results: a string, its name, and how the string is interpreted.
type call struct {
	read  reading
	name  string
	value string
}

// reading determines how a string is interpreted.
type reading int

const (
	asSetting reading = iota // the value of a name
	asText                   // a message or a log
	asName                   // an identifier
	asConfig                 // a file
)

// NewWalker returns a walker without any removed secrets.
func NewWalker() *Walker {
	return &Walker{
		Removed: map[string]int{}, seen: map[uintptr]bool{}, known: map[call]string{}, names: map[string]meaning{},
	}
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	metaTimeType = reflect.TypeFor[metav1.Time]()
	quantityType = reflect.TypeFor[resource.Quantity]()
	intstrType   = reflect.TypeFor[intstr.IntOrString]()
	numberType   = reflect.TypeFor[json.Number]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	extension    = reflect.TypeFor[runtime.RawExtension]()
	// sharedTypes are the types of lists that pods share.
	sharedTypes = map[reflect.Type]bool{
		reflect.TypeFor[[]corev1.Container](): true, reflect.TypeFor[[]corev1.Volume](): true,
		reflect.TypeFor[[]corev1.Toleration](): true, reflect.TypeFor[[]metav1.OwnerReference](): true,
	}
)

// Walk removes secrets from the value that a pointer points to. place is the location for Removed.
func (w *Walker) Walk(place string, pointer any) {
	w.walk(where{place: place, top: true}, "", reflect.ValueOf(pointer))
}

// where is the location of a value.
type where struct {
	place    string
	top      bool // place does not include the field yet
	secret   bool // everything below is secret
	selector bool
	texts    bool // everything is text, including the keys of maps
	options  bool // names were chosen by a user or a driver, not by Kubernetes
}

func (p where) below(name string) where {
	if p.top && name != "" {
		switch name {
		case "env",
			"args",
			"command",
			"annotations",
			"labels",
			"volumes",
			"message",
			"data",
			"values",
			"httpHeaders",
			"config",
			"parameters",
			"files":
			p.place, p.top = p.place+" "+name, false
		}
	}
	return p
}

func (w *Walker) walk(at where, name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			w.walk(at, name, v.Elem())
		}
	case reflect.Interface:
		w.walkInterface(at, name, v)
	case reflect.Struct:
		w.walkStruct(at, name, v)
	case reflect.Map:
		w.walkMap(at, name, v)
	case reflect.Slice, reflect.Array:
		w.walkSlice(at, name, v)
	case reflect.String:
		if v.CanSet() {
			if cleaned := w.clean(at, name, v.String()); cleaned != v.String() {
				v.SetString(cleaned)
			}
		}
	default:
	}
}

// walkInterface walks a copy of the value in an interface, because a value in an interface cannot be set.
func (w *Walker) walkInterface(at where, name string, v reflect.Value) {
	if v.IsNil() {
		return
	}
	inner := v.Elem()
	if inner.Type() == numberType {
		return
	}
	switch inner.Kind() {
	case reflect.Map, reflect.Slice, reflect.Pointer:
		w.walk(at, name, inner)
	case reflect.String:
		if cleaned := w.clean(at, name, inner.String()); cleaned != inner.String() && v.CanSet() {
			v.Set(reflect.ValueOf(cleaned))
		}
	default:
	}
}

func (w *Walker) walkStruct(at where, name string, v reflect.Value) {
	switch v.Type() {
	case timeType, metaTimeType, quantityType, intstrType:
		return
	case extension:
		raw := v.FieldByName("Raw")
		raw.SetBytes(w.json(at, name, raw.Bytes()))
		return
	}
	s := shapeOf(v.Type())
	// Examples of structs with a name and a value are env, [{name: NGC_API_KEY, value: ...}], and headers.
	if s.named >= 0 && v.CanSet() {
		value := v.Field(s.value)
		if v.Type() == headerType && !publicHeader(v.Field(s.named).String()) && value.String() != "" {
			w.count(at.place, value.String(), Mark)
			value.SetString(Mark)
		} else if cleaned := w.clean(at, v.Field(s.named).String(), value.String()); cleaned != value.String() {
			value.SetString(cleaned)
		}
	}
	for _, f := range s.fields {
		if s.named >= 0 && f.index == s.value {
			continue
		}
		inner := v.Field(f.index)
		if inner.IsZero() {
			continue
		}
		below := at
		if f.name == "" { // embedded
			w.walk(below, name, inner)
			continue
		}
		below = at.below(f.name)
		below.secret, below.selector = at.secret || f.secret, at.selector || f.selector
		w.walk(below, f.name, inner)
	}
}

func (w *Walker) walkMap(at where, name string, v reflect.Value) {
	if v.IsNil() || v.Type().Key().Kind() != reflect.String {
		return
	}
	// The name and the value may be two entries, for example in [{name: NGC_API_KEY, value: ...}], or in rules that set
	// a label: [{targetLabel: apikey, replacement: ...}].
	variable, of := "", ""
	for _, pair := range [][2]string{{"name", "value"}, {"targetLabel", "replacement"}} {
		if named := v.MapIndex(reflect.ValueOf(pair[0]).Convert(v.Type().Key())); named.IsValid() && variable == "" &&
			v.Type().Elem().Kind() == reflect.Interface {
			variable, _ = named.Interface().(string)
			of = pair[1]
		}
	}
	for _, key := range v.MapKeys() {
		inner := v.MapIndex(key)
		if at.texts {
			if cleaned := w.Text(at.place, key.String()); cleaned != key.String() {
				v.SetMapIndex(key, reflect.Value{})
				key = reflect.ValueOf(cleaned).Convert(key.Type())
				v.SetMapIndex(key, inner)
			}
		}
		named := key.String()
		below := at.below(named)
		switch {
		case name == "annotations" && !sumName(named):
			named = named[strings.LastIndexByte(named, '/')+1:]
		case named == of && variable != "":
			named = variable
		}
		if !at.selector {
			below.secret = at.secret || w.named(named).group && !structure[named]
		}
		below.selector = at.selector || selectors[named] && name != "parameters"
		switch inner.Kind() {
		case reflect.String:
			below.options = true
			if cleaned := w.clean(below, named, inner.String()); cleaned != inner.String() {
				v.SetMapIndex(key, reflect.ValueOf(cleaned).Convert(v.Type().Elem()))
			}
		case reflect.Interface:
			if text, ok := inner.Interface().(string); ok {
				if cleaned := w.clean(below, named, text); cleaned != text {
					v.SetMapIndex(key, reflect.ValueOf(cleaned))
				}
				continue
			}
			w.walk(below, named, inner)
		case reflect.Struct:
			changed := reflect.New(inner.Type()).Elem()
			changed.Set(inner)
			w.walk(below, named, changed)
			v.SetMapIndex(key, changed)
		default:
			w.walk(below, named, inner)
		}
	}
}

func (w *Walker) walkSlice(at where, name string, v reflect.Value) {
	if v.Len() == 0 {
		return
	}
	if v.Type() == rawType {
		v.SetBytes(w.json(at, name, v.Bytes()))
		return
	}
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return
	}
	if w.Shared && sharedTypes[v.Type()] {
		if w.seen[v.Pointer()] {
			return
		}
		w.seen[v.Pointer()] = true
	}
	if all, ok := stringsOf(v); ok && !at.secret && !at.selector && (lists[name] || isCommand(all)) {
		for i, cleaned := range w.Arguments(at.place, all) {
			if cleaned == all[i] {
				continue
			}
			if v.Index(i).Kind() == reflect.Interface {
				v.Index(i).Set(reflect.ValueOf(cleaned))
			} else {
				v.Index(i).SetString(cleaned)
			}
		}
		return
	}
	for i := range v.Len() {
		w.walk(at, name, v.Index(i))
	}
}

// stringsOf returns a list of strings.
func stringsOf(v reflect.Value) ([]string, bool) {
	all := make([]string, v.Len())
	for i := range all {
		e := v.Index(i)
		if e.Kind() == reflect.Interface && !e.IsNil() {
			e = e.Elem()
		}
		if e.Kind() != reflect.String {
			return nil, false
		}
		all[i] = e.String()
	}
	return all, true
}

// isCommand reports whether a list contains options, and is therefore a command line, whatever the list's name is (for
// example, extraArgs).
func isCommand(all []string) bool {
	for _, arg := range all {
		if strings.HasPrefix(arg, "-") {
			return true
		}
	}
	return false
}

// Arguments removes secrets from a command line, and counts them.
func (w *Walker) Arguments(place string, all []string) []string {
	cleaned := Arguments(all)
	for i := range all {
		w.count(place, all[i], cleaned[i])
	}
	return cleaned
}

// json returns JSON text without its secrets, or nothing if the text is not valid JSON.
func (w *Walker) json(at where, name string, raw []byte) []byte {
	if len(raw) == 0 {
		return raw
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var tree any
	if decoder.Decode(&tree) != nil {
		w.Removed[at.place]++
		return nil
	}
	before := w.Total()
	w.walk(at, name, reflect.ValueOf(&tree))
	if w.Total() == before {
		return raw
	}
	cleaned, err := json.Marshal(tree)
	if err != nil {
		return nil
	}
	return cleaned
}

// WalkTexts removes secrets from all strings that the pointer leads to. It treats them as free text, because data from
// a node contains no settings or identifiers.
func (w *Walker) WalkTexts(place string, pointer any) {
	w.walk(where{place: place, texts: true}, "", reflect.ValueOf(pointer))
}

// Total returns the number of secrets that were removed.
func (w *Walker) Total() int {
	n := 0
	for _, removed := range w.Removed {
		n += removed
	}
	return n
}

func (w *Walker) clean(at where, name, value string) string {
	if value == "" || value == Mark {
		return value
	}
	var read reading
	switch {
	case at.secret && !structure[name] && !places[name]:
		if harmlessValue(name, value) {
			return value
		}
		w.count(at.place, value, Mark)
		return Mark
	case at.texts:
		read = asText
	case structure[name] && !at.options:
		read = asName
	case at.selector && !plain(value) && w.named(name).secret:
		w.count(at.place, value, Mark)
		return Mark
	case at.selector, texts[name]:
		read = asText
	case strings.Contains(value, "\n"):
		read = asConfig
	}
	if read == asName { // most names are unique
		cleaned := Known(value)
		w.count(at.place, value, cleaned)
		return cleaned
	}
	if read != asSetting {
		name = ""
	}
	key := call{read, name, value}
	cleaned, ok := w.known[key]
	if !ok {
		switch read {
		case asText:
			cleaned = Text(value)
		case asConfig:
			cleaned = Config(value)
		default:
			cleaned = Setting(name, value)
		}
		if len(value) < 256 {
			w.known[key] = cleaned
		}
	}
	w.count(at.place, value, cleaned)
	return cleaned
}

// Text removes secrets from text, and counts them.
func (w *Walker) Text(place, text string) string {
	cleaned := Text(text)
	w.count(place, text, cleaned)
	return cleaned
}

// Config removes secrets from a file, and counts them.
func (w *Walker) Config(place, text string) string {
	cleaned := Config(text)
	w.count(place, text, cleaned)
	return cleaned
}

func (w *Walker) count(place, before, after string) {
	if before != after {
		w.Removed[place] += max(1, strings.Count(after, Mark)-strings.Count(before, Mark))
	}
}

// headerType is the type of headers in probes and hooks.
var headerType = reflect.TypeFor[corev1.HTTPHeader]()

// publicHeader reports whether an HTTP header cannot contain a credential.
func publicHeader(name string) bool {
	switch strings.ToLower(name) {
	case "accept", "accept-encoding", "accept-language", "connection", "content-type", "host", "user-agent":
		return true
	}
	return false
}

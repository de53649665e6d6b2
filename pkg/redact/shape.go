package redact

import (
	"reflect"
	"strings"
	"sync"
)

// field is a struct field that may contain strings.
type field struct {
	index            int
	name             string // the name in JSON
	secret, selector bool
}

// shape is the information about a type.
type shape struct {
	fields []field
	// named and value are the indexes of the fields Name and Value of a variable or a header, or -1.
	named, value int
}

// shapes caches the shapes of types, which thousands of objects share.
var shapes sync.Map

func shapeOf(t reflect.Type) *shape {
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	s := &shape{named: -1, value: -1}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || !hasStrings(f.Type, 0) {
			continue
		}
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if (tag == "" || tag == "-") && !f.Anonymous {
			tag = strings.ToLower(f.Name[:1]) + f.Name[1:]
		}
		switch {
		case f.Type.Kind() != reflect.String:
		case f.Name == "Name":
			s.named = i
		case f.Name == "Value":
			s.value = i
		}
		s.fields = append(s.fields, field{i, tag, secretGroup(tag) && !structure[tag], selectors[tag]})
	}
	if s.named < 0 || s.value < 0 {
		s.named, s.value = -1, -1
	}
	shapes.Store(t, s)
	return s
}

// hasStrings reports whether a value of the type may contain a string.
func hasStrings(t reflect.Type, depth int) bool {
	switch t {
	case timeType, metaTimeType, quantityType, intstrType, numberType:
		return false
	case extension:
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Interface, reflect.Map:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return t == rawType || t.Elem().Kind() != reflect.Uint8 && (depth > 8 || hasStrings(t.Elem(), depth+1))
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && (depth > 8 || hasStrings(f.Type, depth+1)) {
				return true
			}
		}
	default:
	}
	return false
}

package otlp

import (
	"strconv"
	"time"
)

// The required parts of the messages of an OTLP trace in JSON encoding: names are in lowerCamelCase, IDs in
// hexadecimal, 64-bit integers are strings, and enums are numbers.
type (
	traces struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID       string      `json:"traceId"`
		SpanID        string      `json:"spanId"`
		Parent        string      `json:"parentSpanId,omitempty"`
		Name          string      `json:"name"`
		Kind          int         `json:"kind"`
		Start         string      `json:"startTimeUnixNano"`
		End           string      `json:"endTimeUnixNano"`
		Attributes    []attribute `json:"attributes,omitempty"`
		Events        []event     `json:"events,omitempty"`
		DroppedEvents int         `json:"droppedEventsCount,omitempty"`
		Status        status      `json:"status"`
	}
	event struct {
		Time       string      `json:"timeUnixNano"`
		Name       string      `json:"name"`
		Attributes []attribute `json:"attributes,omitempty"`
	}
	status struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	// value has exactly one field set.
	value struct {
		String *string  `json:"stringValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
		Double *float64 `json:"doubleValue,omitempty"`
		Array  *array   `json:"arrayValue,omitempty"`
	}
	array struct {
		Values []value `json:"values"`
	}
)

const (
	kindInternal = 1
	statusOK     = 1
	statusError  = 2
)

func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func text(key, s string) attribute { return attribute{key, value{String: &s}} }

func truth(key string, is bool) attribute { return attribute{key, value{Bool: &is}} }

func decimal(key string, f float64) attribute { return attribute{key, value{Double: &f}} }

func list(key string, all []string) attribute {
	a := array{Values: []value{}}
	for _, s := range all {
		a.Values = append(a.Values, value{String: &s})
	}
	return attribute{key, value{Array: &a}}
}

// known returns the attributes without those whose value is empty.
func known(all ...attribute) []attribute {
	var kept []attribute
	for _, a := range all {
		if a.Value.String == nil || *a.Value.String != "" {
			kept = append(kept, a)
		}
	}
	return kept
}

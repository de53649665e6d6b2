package check

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// events lists events about an object, oldest first. An empty name means all objects of the kind. The core/v1 list
// includes events created through events.k8s.io; their missing fields are filled in, so that expressions can treat all
// events the same.
func (c *Checker) events(ctx context.Context, ref scenario.Ref) (view, error) {
	items, err := c.eventsAbout(ctx, ref, "")
	if err != nil {
		return view{}, fmt.Errorf("list events about %s %s: %w", ref.Kind, ref.Name, err)
	}
	return view{vars: expr.Vars{"list": items}, evidence: lastEvent(items)}, nil
}

func (c *Checker) eventsAbout(ctx context.Context, ref scenario.Ref, uid string) ([]any, error) {
	about := map[string]string{"kind": ref.Kind, "name": ref.Name, "namespace": ref.Namespace, "uid": uid}
	var terms []fields.Selector
	for field, value := range about {
		if value != "" {
			terms = append(terms, fields.OneTermEqualSelector("involvedObject."+field, value))
		}
	}
	resource := c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"})
	client := resource.Namespace(ref.Namespace)
	if ref.Namespace == "" { // events about nodes are usually in namespace default, but not from all components
		client = resource
	}
	all, err := list(ctx, client, metav1.ListOptions{FieldSelector: fields.AndSelectors(terms...).String()})
	if err != nil {
		return nil, err
	}
	items := []any{}
	for _, item := range all {
		event := item.(map[string]any)
		if isAbout(event, about) {
			complete(event)
			items = append(items, event)
		}
	}
	sorting.StableFunc(items, func(a, b any) int { return cmp.Compare(lastTime(a), lastTime(b)) })
	return items, nil
}

// isAbout reports whether the event is about the object. The server already applies this field selector, but the fakes
// in tests do not.
func isAbout(event map[string]any, about map[string]string) bool {
	for field, value := range about {
		if got, _ := nested(event, "involvedObject", field).(string); value != "" && got != value {
			return false
		}
	}
	return true
}

// complete fills in the times and the count, which are in other fields in events from events.k8s.io.
func complete(event map[string]any) {
	created, _ := nested(event, "metadata", "creationTimestamp").(string)
	first := text(event["firstTimestamp"], event["eventTime"], created)
	last := text(event["lastTimestamp"], nested(event, "series", "lastObservedTime"), event["eventTime"], first)
	event["firstTimestamp"], event["lastTimestamp"] = first, last
	if count, is := event["count"].(int64); !is || count == 0 {
		event["count"] = int64(1)
		if n, is := nested(event, "series", "count").(int64); is {
			event["count"] = n
		}
	}
	for _, name := range []string{"reason", "message", "type"} {
		if event[name] == nil {
			event[name] = ""
		}
	}
}

// text returns the first non-empty string.
func text(values ...any) string {
	for _, v := range values {
		if s, _ := v.(string); s != "" {
			return s
		}
	}
	return ""
}

// lastTime returns a sort key, without fractions of a second, which not all events have.
func lastTime(event any) string {
	at, _ := event.(map[string]any)["lastTimestamp"].(string)
	at, _, _ = strings.Cut(strings.TrimSuffix(at, "Z"), ".")
	return at
}

func lastEvent(items []any) string {
	if len(items) == 0 {
		return "no events"
	}
	event := items[len(items)-1].(map[string]any)
	return fmt.Sprintf("%v: %v", event["reason"], event["message"])
}

package recorder

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// FirstRelevant returns the time at which the root-cause object was first read: by name, in a list of full objects,
// through its events, or as the pods of a workload. A table of several objects does not count. It returns the
// zero time if there was no such request.
func FirstRelevant(lines []Line, root scenario.RootCause) time.Time {
	wanted := append([]string{root.Object.Value}, root.Object.Aliases...)
	var first time.Time
	for _, line := range lines {
		if line.Status == 0 || line.Status >= 400 || !first.IsZero() && !line.Time.Before(first) {
			continue
		}
		if slices.ContainsFunc(wanted, func(object string) bool { return looksAt(line, object) }) {
			first = line.Time
		}
	}
	return first
}

// looksAt reports whether a request reads the object, which is specified as Kind/name, NAMESPACE/Kind/name or
// Kind/NAMESPACE/name; the namespace is ignored.
func looksAt(line Line, object string) bool {
	parts := strings.Split(strings.ToLower(object), "/")
	name, kind := parts[len(parts)-1], parts[0]
	if len(parts) < 2 || name == "" || kind == "" {
		return false
	}
	ofKind := isKind(line.Resource, kind)
	switch {
	case ofKind && strings.EqualFold(line.Name, name):
		return true
	case ofKind && slices.Contains([]string{"list", "watch"}, line.Verb):
		return !line.Table || line.Fields == "metadata.name="+name
	case line.Resource == "events":
		return slices.ContainsFunc(strings.Split(line.Fields, ","), func(f string) bool {
			return f == "involvedObject.name="+name || f == "regarding.name="+name
		})
	case line.Resource == "pods" &&
		slices.Contains([]string{"deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob"}, kind):
		return strings.HasPrefix(line.Name, name+"-")
	}
	return false
}

// isKind reports whether a resource is the plural of a kind.
func isKind(resource, kind string) bool {
	return slices.Contains([]string{kind, kind + "s", kind + "es", strings.TrimSuffix(kind, "y") + "ies"}, resource)
}

// Summary is the summary of a transcript in a report.
type Summary struct {
	Requests    int       `json:"requests"` // without kubectl's own discovery
	Looks       int       `json:"looks"`
	Changes     int       `json:"changes"`
	Refused     int       `json:"refused"` // refused because of missing permissions
	First       time.Time `json:"first,omitzero"`
	FirstChange time.Time `json:"firstChange,omitzero"` // the first change that succeeded
	Last        time.Time `json:"last,omitzero"`
	Minutes     []Minute  `json:"minutes,omitempty"` // since First; minutes without requests are omitted
	// Objects are the ten objects with the most requests.
	Objects []Count `json:"objects,omitempty"`
}

// Minute counts the requests of one minute.
type Minute struct {
	Minute  int `json:"minute"` // 0 is the first minute
	Looks   int `json:"looks"`
	Changes int `json:"changes"`
}

// Count is the number of requests for an object.
type Count struct {
	Object  string `json:"object"` // deployments.apps team-a/web
	Looks   int    `json:"looks"`
	Changes int    `json:"changes"`
}

// IsChange reports whether the request may have changed an object. A command in a container does not count,
// because its effect is unknown.
func (l Line) IsChange() bool {
	asks := (l.Group == "authorization.k8s.io" || l.Group == "authentication.k8s.io") &&
		strings.HasSuffix(l.Resource, "reviews")
	if l.DryRun || asks || slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, l.Subresource) {
		return false
	}
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, l.Verb)
}

// Object returns the requested object, or "" for a list.
func (l Line) Object() string {
	if l.Resource == "" || l.Name == "" {
		return ""
	}
	if l.Namespace != "" {
		return l.kind() + " " + l.Namespace + "/" + l.Name
	}
	return l.kind() + " " + l.Name
}

// kind returns the resource in a form that kubectl accepts: deployments.apps.
func (l Line) kind() string {
	if l.Group == "" {
		return l.Resource
	}
	return l.Resource + "." + l.Group
}

// inOrder returns the requests in order, without kubectl's own discovery.
func inOrder(lines []Line) []Line {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return l.Resource == "" })
	sorting.StableFunc(lines, func(a, b Line) int { return a.Time.Compare(b.Time) })
	return lines
}

// Summarize returns the summary of the requests.
func Summarize(lines []Line) Summary {
	var s Summary
	lines = inOrder(lines)
	objects := map[string]*Count{}
	for _, line := range lines {
		if s.Requests == 0 {
			s.First = line.Time
		}
		s.Requests, s.Last = s.Requests+1, line.Time
		count := objects[line.Object()]
		if count == nil {
			count = &Count{Object: line.Object()}
			objects[line.Object()] = count
		}
		if line.Status == http.StatusForbidden {
			s.Refused++
		}
		at := int(line.Time.Sub(s.First) / time.Minute)
		if n := len(s.Minutes); n == 0 || s.Minutes[n-1].Minute != at {
			s.Minutes = append(s.Minutes, Minute{Minute: at})
		}
		minute := &s.Minutes[len(s.Minutes)-1]
		if line.IsChange() {
			s.Changes, count.Changes, minute.Changes = s.Changes+1, count.Changes+1, minute.Changes+1
			if s.FirstChange.IsZero() && line.Status >= 200 && line.Status < 300 {
				s.FirstChange = line.Time
			}
		} else {
			s.Looks, count.Looks, minute.Looks = s.Looks+1, count.Looks+1, minute.Looks+1
		}
	}
	delete(objects, "")
	s.Objects = mostAsked(objects)
	return s
}

// Asked is the number of requests that have the same verb and concern the same kind.
type Asked struct {
	Verb     string    `json:"verb"` // exec, log and other subresources count separately
	Resource string    `json:"resource"`
	Requests int       `json:"requests"`
	Refused  int       `json:"refused"` // refused because of missing permissions
	First    time.Time `json:"first"`
}

// Tally counts requests by verb and kind, in the order of their first occurrence.
func Tally(lines []Line) []Asked {
	var all []Asked
	for _, line := range inOrder(lines) {
		i := slices.IndexFunc(all, func(a Asked) bool { return a.Verb == line.word() && a.Resource == line.kind() })
		if i < 0 {
			i = len(all)
			all = append(all, Asked{Verb: line.word(), Resource: line.kind(), First: line.Time})
		}
		all[i].Requests++
		if line.Status == http.StatusForbidden {
			all[i].Refused++
		}
	}
	return all
}

// word returns the verb for display.
func (l Line) word() string {
	if slices.Contains([]string{"exec", "attach", "portforward", "log", "scale", "eviction"}, l.Subresource) {
		return l.Subresource
	}
	return l.Verb
}

func mostAsked(objects map[string]*Count) []Count {
	const shown = 10
	var all []Count
	for _, count := range objects {
		all = append(all, *count)
	}
	sorting.Func(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Looks+b.Changes, a.Looks+a.Changes), cmp.Compare(a.Object, b.Object))
	})
	return all[:min(len(all), shown)]
}

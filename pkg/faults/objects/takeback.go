package objects

import (
	"reflect"
	"slices"
)

// takeBack puts back in an object what is still as an edit left it. It reports whether that changed something, and
// whether somebody else has changed it meanwhile.
func (e Edit) takeBack(object map[string]any) (changed, theirs bool) {
	was, ours := decode(e.Was), decode(e.Ours)
	if e.Element {
		return e.takeBackElement(object, was, ours)
	}
	now, _ := get(object, e.Path)
	switch {
	case reflect.DeepEqual(now, was):
		return false, false
	case !reflect.DeepEqual(now, ours) && !e.zeroed(now):
		return false, true
	case was != nil:
		return e.putBack(object, now, was)
	}
	remove(object, e.Path)
	e.clear(object, e.Path[:len(e.Path)-1])
	return true, false
}

// zeroed reports whether a kubelet has set a number of devices of ours to zero, as it does when a device plugin came
// and went, and on a node whose folder of device plugins is empty when it starts (setters.go and
// reconcileExtendedResource in kubelet_node_status.go). Zero is nobody's: a kubelet that means it writes it again.
func (e Edit) zeroed(now any) bool {
	return e.Path[0].Field == fieldStatus && now == "0"
}

// putBack puts the former value in its place. An element with a name goes where it was in its list.
func (e Edit) putBack(object map[string]any, now, was any) (changed, theirs bool) {
	at, value := e.Path, was
	if e.Path[len(e.Path)-1].Name != "" && now == nil {
		at = e.Path[:len(e.Path)-1]
		around, _ := get(object, at)
		list, isList := around.([]any)
		if around != nil && !isList {
			return false, true
		}
		value = slices.Insert(slices.Clone(list), min(e.At, len(list)), was)
	}
	if !set(object, at, value) {
		return false, true
	}
	return true, false
}

func (e Edit) takeBackElement(object map[string]any, was, ours any) (changed, theirs bool) {
	now, _ := get(object, e.Path)
	list, isList := now.([]any)
	if now != nil && !isList {
		return false, true
	}
	i := slices.IndexFunc(list, func(v any) bool { return ours != nil && reflect.DeepEqual(v, ours) })
	list = slices.Clone(list)
	switch {
	case i >= 0 && was != nil && !contains(list, was):
		list[i] = was
	case i >= 0: // also when the former one is there beside ours
		list = slices.Delete(list, i, i+1)
	case was == nil || contains(list, was):
		return false, false
	case ours != nil: // neither of them
		return false, true
	default:
		at := min(e.At, len(list))
		list = slices.Insert(list, at, was)
	}
	if !set(object, e.Path, list) {
		return false, true
	}
	e.clear(object, e.Path)
	return true, false
}

// clear takes out what had to be made for the edit and is empty now, from a path on upwards.
func (e Edit) clear(object map[string]any, at Path) {
	for range e.Made {
		if len(at) == 0 {
			return
		}
		now, ok := get(object, at)
		if ok && !isEmpty(now) {
			return
		}
		remove(object, at)
		at = at[:len(at)-1]
	}
}

func isEmpty(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return len(value) == 0
	case []any:
		return len(value) == 0
	}
	return value == nil
}

// merge returns the JSON merge patch (RFC 7386) that makes one object of the other. Lists are replaced as a whole.
func merge(from, to map[string]any) map[string]any {
	body := map[string]any{}
	for _, name := range keys(from, to) {
		f, t := from[name], to[name]
		if reflect.DeepEqual(f, t) {
			continue
		}
		fMap, fIsMap := f.(map[string]any)
		tMap, tIsMap := t.(map[string]any)
		if fIsMap && tIsMap {
			body[name] = merge(fMap, tMap)
			continue
		}
		body[name] = t // nil where it is gone
	}
	return body
}

package terraform

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// toObject converts the body of a resource, which was validated against the schema, to an object.
func toObject(k kind, body Body) (Object, error) {
	var object Object
	if k.kind == "" {
		object, _ = body["manifest"].(map[string]any)
	} else {
		object, _ = toKubernetes(field{shape: block, fields: k.fields}, []any{body}).(map[string]any)
		object["apiVersion"], object["kind"] = k.apiVersion, k.kind
	}
	for _, path := range [][]string{{"apiVersion"}, {"kind"}, {"metadata", "name"}} {
		if textAt(object, path...) == "" {
			return nil, fmt.Errorf("the manifest has no %s", path[len(path)-1])
		}
	}
	subjects, _ := object["subjects"].([]any)
	for _, one := range subjects {
		subject, _ := one.(map[string]any)
		if subject["kind"] == "ServiceAccount" && subject["namespace"] == nil && k.kind != "" {
			subject["namespace"] = "default" // the provider's default
		}
	}
	return object, nil
}

// toKubernetes converts a field to its form in Kubernetes.
func toKubernetes(f field, value any) any {
	switch f.shape {
	case port:
		if n, err := strconv.Atoi(value.(string)); err == nil {
			return int64(n)
		}
	case block, blocks:
		var all []any
		for _, one := range value.([]any) {
			object := map[string]any{}
			for name, inner := range one.(map[string]any) {
				if of, known := named(f.fields, name); known {
					object[of.key()] = toKubernetes(of, inner)
				}
			}
			all = append(all, object)
		}
		if f.shape == block {
			return all[0]
		}
		return all
	}
	return value
}

// toBody converts an object to the body of a resource. Fields that are not in the schema are an error, because
// they would be lost.
func toBody(k kind, object Object) (Body, error) {
	if k.kind == "" {
		return Body{"manifest": object}, nil
	}
	rest := maps.Clone(object)
	delete(rest, "apiVersion")
	delete(rest, "kind")
	return bodyOf(k.fields, rest)
}

func bodyOf(fields []field, object map[string]any) (Body, error) {
	body := Body{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key() == key })
		if i < 0 {
			return nil, fmt.Errorf("%s: field not supported by the Terraform provider", key)
		}
		value, err := fromKubernetes(fields[i], object[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		body[fields[i].name] = value
	}
	return body, nil
}

func fromKubernetes(f field, value any) (any, error) {
	switch f.shape {
	case port:
		return fmt.Sprint(value), nil
	case block:
		value = []any{value}
	case blocks:
	default:
		return value, nil
	}
	list, is := value.([]any)
	if !is {
		return nil, fmt.Errorf("is not a list")
	}
	all := make([]any, len(list))
	for i, one := range list {
		object, is := one.(map[string]any)
		if !is {
			return nil, fmt.Errorf("is not an object")
		}
		body, err := bodyOf(f.fields, object)
		if err != nil {
			return nil, err
		}
		all[i] = body
	}
	return all, nil
}

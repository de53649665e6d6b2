package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// assert returns an assertion that the target contains a part.
func (c *chainsaw) assert(x Expectation) (*chainsawAssert, error) {
	if c.Target.Node == "" {
		return nil, fmt.Errorf("%s: target: specify --node", x.Name)
	}
	part, err := asNode(x.Node)
	if err != nil {
		return nil, fmt.Errorf("%s: node: %w", x.Name, err)
	}
	resource, err := assertion(part, "node")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.Name, err)
	}
	metadata, _ := resource["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	if _, is := metadata["name"]; is {
		return nil, fmt.Errorf("%s: node.metadata.name is set to the target: remove this field", x.Name)
	}
	metadata["name"] = c.Target.Node
	resource["apiVersion"], resource["kind"], resource["metadata"] = "v1", "Node", metadata
	return &chainsawAssert{Timeout: x.Within.Std().String(), Resource: resource}, nil
}

// asNode returns a part of a node with JSON types. Experiments compare values as strings, but Chainsaw compares them
// with their types, so a part is rejected if a node cannot contain it as it is written.
func asNode(part map[string]any) (map[string]any, error) {
	raw, err := json.Marshal(part)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := json.Unmarshal(raw, &given); err != nil {
		return nil, err
	}
	var node corev1.Node
	if err := json.Unmarshal(raw, &node); err != nil {
		return nil,
			fmt.Errorf("does not have the field types of a node, so this part cannot be expressed in Chainsaw: %w", err)
	}
	if raw, err = json.Marshal(node); err != nil {
		return nil, err
	}
	var back map[string]any
	if err := json.Unmarshal(raw, &back); err != nil {
		return nil, err
	}
	return given, kept(given, back, "")
}

// kept returns an error if a value differs from what the API server would write.
func kept(given, back any, path string) error {
	same := false
	switch given := given.(type) {
	case map[string]any:
		other, _ := back.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(given)) {
			if err := kept(given[key], other[key], path+"."+key); err != nil {
				return err
			}
		}
		return nil
	case []any:
		other, _ := back.([]any)
		for i, item := range given[:min(len(given), len(other))] {
			if err := kept(item, other[i], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		same = len(given) > 0 && len(other) == len(given)
	case bool: // the API server omits false
		same = given == (back == true)
	default:
		same = given != nil && given == back
	}
	if same {
		return nil
	}
	return fmt.Errorf(
		"%s is not a value that the API server writes for this field, so it cannot be expressed in Chainsaw",
		strings.TrimPrefix(path, "."))
}

// assertion returns a part of a node as a Chainsaw assertion. Plain fields are not changed. The value false and lists
// become JMESPath expressions, because an absent field counts as false, and a list only has to contain the items.
func assertion(part map[string]any, path string) (map[string]any, error) {
	all := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(part)) {
		path := path + "." + key
		if isExpression(key) || strings.ContainsAny(key, "\"\\`") {
			return nil, fmt.Errorf("%s cannot be expressed in Chainsaw, which would evaluate it", path)
		}
		switch value := part[key].(type) {
		case map[string]any:
			below, err := assertion(value, path)
			if err != nil {
				return nil, err
			}
			if len(below) == 0 {
				return nil, fmt.Errorf("%s is empty", path)
			}
			all[key] = below
		case []any:
			for i, item := range value {
				test, err := containing(key, item)
				if err != nil {
					return nil, fmt.Errorf("%s[%d]: %w", path, i, err)
				}
				all[test] = true
			}
		case bool:
			if !value {
				all["(\""+key+"\" || `false`)"] = false
				continue
			}
			all[key] = true
		case string:
			if isExpression(value) {
				return nil, fmt.Errorf("%s cannot be expressed in Chainsaw, which would evaluate it", path)
			}
			all[key] = value
		default:
			all[key] = value
		}
	}
	return all, nil
}

// isExpression reports whether Chainsaw would interpret a string as an expression.
func isExpression(text string) bool {
	return strings.HasPrefix(text, "(") || strings.HasPrefix(text, "~") || strings.HasPrefix(text, `\`) ||
		strings.Contains(text, "->")
}

// containing returns an expression that is true if a list contains an item.
func containing(list string, item any) (string, error) {
	from := "(\"" + list + "\" || `[]`)"
	fields, is := item.(map[string]any)
	if !is {
		value, err := literal(item)
		return "(contains(" + from + ", " + value + "))", err
	}
	var tests []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value, err := literal(fields[key])
		if err != nil || strings.ContainsAny(key, "\"\\`") {
			return "", fmt.Errorf("%s cannot be expressed in Chainsaw: the items of a list must have plain fields", key)
		}
		if fields[key] == false {
			tests = append(tests, "!\""+key+"\"")
			continue
		}
		tests = append(tests, "\""+key+"\" == "+value)
	}
	return "(length(" + from + "[?" + strings.Join(tests, " && ") + "]) > `0`)", nil
}

// literal returns a string, a number or a Boolean in JMESPath.
func literal(value any) (string, error) {
	switch value := value.(type) {
	case string:
		if !strings.ContainsAny(value, "'\\`") {
			return "'" + value + "'", nil
		}
	case bool, float64:
		return fmt.Sprintf("`%v`", value), nil
	}
	return "", fmt.Errorf("%v cannot be expressed in Chainsaw: must be a plain string, a number, true or false", value)
}

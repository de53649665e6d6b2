package baseline

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Environments returns the differences with the environment variables compared by their values in the containers. It
// does not matter whether a value is in the template, in a ConfigMap or in a Secret. But a new variable from one of
// these sources counts like any other: its field is spec.template.spec.containers[main].env[NAME]. Only workloads in
// the given namespaces are compared, which must be stored in full.
func Environments(differences []Difference, before, after *Baseline, namespaces []string) []Difference {
	for k, was := range before.objects {
		is := after.objects[k]
		if is == nil || was.hashes != nil || is.hashes != nil || !slices.Contains(namespaces, k.namespace) ||
			mapAt(was.body, "spec", "template", "spec") == nil {
			continue
		}
		edits := compareEnvironments(
			environments(before, k.namespace, was), environments(after, k.namespace, is), before.salt(),
		)
		i := slices.IndexFunc(differences, func(d Difference) bool { return keyOf(d.Ref) == k })
		if i >= 0 {
			for _, e := range differences[i].edits {
				if !ofEnvironment(e.field) {
					edits = append(edits, e)
				}
			}
			if differences[i].Kind != Changed {
				continue
			}
			differences = slices.Delete(differences, i, i+1)
		}
		if len(edits) > 0 {
			sorting.Func(edits, func(a, b edit) int { return strings.Compare(a.field, b.field) })
			differences = append(differences, changed(k, was, edits))
		}
	}
	return differences
}

// ofEnvironment reports whether the field is part of a container's environment variables.
func ofEnvironment(field string) bool {
	at := segments(field)
	return len(at) > 5 && slices.Equal(at[:3], []string{"spec", "template", "spec"}) &&
		(at[3] == "containers" || at[3] == "initContainers") && (at[5] == "env" || at[5] == "envFrom")
}

// environments returns the variables of a workload's containers, by the path of the container.
func environments(b *Baseline, namespace string, o *object) map[string]map[string]string {
	spec := mapAt(o.body, "spec", "template", "spec")
	all := map[string]map[string]string{}
	for _, list := range []string{"initContainers", "containers"} {
		items, _ := spec[list].([]any)
		for _, each := range items {
			container, _ := each.(map[string]any)
			all[fmt.Sprintf("spec.template.spec.%s[%v]", list, container["name"])] = b.environment(namespace, container)
		}
	}
	return all
}

// environment returns the variables of a container. Values that are only known when the container runs are replaced by
// a description.
func (b *Baseline) environment(namespace string, container map[string]any) map[string]string {
	all := map[string]string{}
	from, _ := container["envFrom"].([]any)
	for _, each := range from {
		source, _ := each.(map[string]any)
		prefix, _ := source["prefix"].(string)
		for _, kind := range []string{"ConfigMap", "Secret"} {
			ref := mapAt(source, map[string]string{"ConfigMap": "configMapRef", "Secret": "secretRef"}[kind])
			for name, value := range b.data(kind, namespace, ref["name"]) {
				all[prefix+name] = value
			}
		}
	}
	variables, _ := container["env"].([]any)
	given := map[string]bool{}
	for _, each := range variables {
		variable, _ := each.(map[string]any)
		name, _ := variable["name"].(string)
		value := b.value(namespace, variable)
		if given[name] { // which of the two takes precedence depends on the program
			value = all[name] + ", and " + value
		}
		all[name], given[name] = value, true
	}
	return all
}

// value returns the value of a variable.
func (b *Baseline) value(namespace string, variable map[string]any) string {
	from := mapAt(variable, "valueFrom")
	if from == nil {
		value, _ := variable["value"].(string)
		return value
	}
	for field, kind := range map[string]string{"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"} {
		if ref := mapAt(from, field); ref != nil {
			if value, is := b.data(kind, namespace, ref["name"])[fmt.Sprint(ref["key"])]; is {
				return value
			}
			return fmt.Sprintf("(%v of %s %v, which does not exist)", ref["key"], kind, ref["name"])
		}
	}
	text, err := json.Marshal(from)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// data returns the data of a ConfigMap, or the hashes of a Secret's data.
func (b *Baseline) data(kind, namespace string, name any) map[string]string {
	found := b.objects[key{schema.GroupKind{Kind: kind}, namespace, fmt.Sprint(name)}]
	all := map[string]string{}
	if found == nil {
		return all
	}
	for name, value := range mapAt(found.body, "data") {
		all[name] = fmt.Sprint(value)
	}
	return all
}

// sameValue reports whether two values are equal. Either value may be the hash of a Secret's value.
func sameValue(x, y string, salt []byte) bool {
	hash := func(value string) string { return hashOf(base64.StdEncoding.EncodeToString([]byte(value)), salt) }
	return x == y || Hashed(y) && hash(x) == y || Hashed(x) && hash(y) == x
}

// salt returns the salt of the hashes; see capture.
func (b *Baseline) salt() []byte {
	system := b.objects[key{schema.GroupKind{Kind: "Namespace"}, "", metav1.NamespaceSystem}]
	if system == nil {
		return nil
	}
	uid, _ := mapAt(system.body, "metadata")["uid"].(string)
	return []byte(uid)
}

// compareEnvironments returns the variables that differ, for containers that exist on both sides.
func compareEnvironments(was, is map[string]map[string]string, salt []byte) []edit {
	var edits []edit
	for container, before := range was {
		after, exists := is[container]
		if !exists {
			continue
		}
		for name := range union(before, after) {
			x, had := before[name]
			y, has := after[name]
			if had != has || !sameValue(x, y, salt) {
				field := fmt.Sprintf("%s.env[%s]", container, name)
				edits = append(edits, edit{field: field, was: show(x), is: show(y), now: y})
			}
		}
	}
	return edits
}

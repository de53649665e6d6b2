package baseline

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Environments returns the differences, but compares environment variables by the values that the containers get. It
// does not matter whether a value is in the template, in a ConfigMap or in a Secret. But a new variable from one of
// these sources counts like any other: its field is spec.template.spec.containers[main].env[NAME]. References $(NAME)
// are replaced, and helpers of a changed variable do not count. Only workloads in the given namespaces, which must be
// stored in full, are compared.
func Environments(differences []Difference, before, after *Baseline, namespaces []string) []Difference {
	for k, was := range before.objects {
		is := after.objects[k]
		if is == nil || was.hashes != nil || is.hashes != nil || !slices.Contains(namespaces, k.namespace) ||
			mapAt(was.body, "spec", "template", "spec") == nil {
			continue
		}
		salt := before.salt()
		edits := compareEnvironments(
			environments(before, k.namespace, was), environments(after, k.namespace, is), func(x, y string) bool {
				return sameValue(x, y, salt) || before.host(k.namespace, x) == after.host(k.namespace, y)
			},
		)
		edits = withoutHelpers(edits, is)
		i := slices.IndexFunc(differences, func(d Difference) bool { return keyOf(d.Ref) == k })
		if i >= 0 && differences[i].Note != "" {
			continue // nothing makes up for it
		}
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
	spec, pod := mapAt(o.body, "spec", "template", "spec"), mapAt(o.body, "spec", "template", "metadata")
	all := map[string]map[string]string{}
	for _, list := range []string{"initContainers", "containers"} {
		items, _ := spec[list].([]any)
		for _, each := range items {
			container, _ := each.(map[string]any)
			at := fmt.Sprintf("spec.template.spec.%s[%v]", list, container["name"])
			all[at] = b.environment(namespace, pod, container)
		}
	}
	return all
}

// environment returns the variables of a container. Values that are only known when the container runs are replaced by
// a description.
func (b *Baseline) environment(namespace string, pod, container map[string]any) map[string]string {
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
	given, latest := map[string]bool{}, maps.Clone(all)
	for _, each := range variables {
		variable, _ := each.(map[string]any)
		name, _ := variable["name"].(string)
		value := b.value(namespace, pod, variable, latest)
		latest[name] = value
		if given[name] { // which of the two takes precedence depends on the program
			value = all[name] + ", and " + value
		}
		all[name], given[name] = value, true
	}
	return all
}

// ofPod matches the fields of a pod's metadata that are the same in its template.
var ofPod = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)

// value returns the value of a variable, which may refer to the previous variables and to labels in the metadata of the
// pod template.
func (b *Baseline) value(namespace string, pod, variable map[string]any, previous map[string]string) string {
	from := mapAt(variable, "valueFrom")
	if from == nil {
		value, _ := variable["value"].(string)
		return expr.Expand(value, previous)
	}
	for field, kind := range map[string]string{"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"} {
		if ref := mapAt(from, field); ref != nil {
			if value, is := b.data(kind, namespace, ref["name"])[fmt.Sprint(ref["key"])]; is {
				return value
			}
			return fmt.Sprintf("(%v of %s %v, which does not exist)", ref["key"], kind, ref["name"])
		}
	}
	field, _ := mapAt(from, "fieldRef")["fieldPath"].(string)
	if m := ofPod.FindStringSubmatch(field); m != nil {
		if value, is := mapAt(pod, m[1])[m[2]].(string); is {
			return value
		}
	}
	if field == "metadata.namespace" {
		return namespace
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

// host returns a value without the part that a resolver adds itself, if the value is the longer DNS name of a Service
// in the namespace: NAME.NAMESPACE, NAME.NAMESPACE.svc or NAME.NAMESPACE.svc.cluster.local.
func (b *Baseline) host(namespace, value string) string {
	name, domain, _ := strings.Cut(value, "."+namespace)
	service := key{schema.GroupKind{Kind: "Service"}, namespace, name}
	if b.objects[service] != nil && slices.Contains([]string{"", ".svc", ".svc.cluster.local"}, domain) {
		return name
	}
	return value
}

// compareEnvironments returns the variables that differ, for containers that exist on both sides.
func compareEnvironments(was, is map[string]map[string]string, same func(x, y string) bool) []edit {
	var edits []edit
	for container, before := range was {
		after, exists := is[container]
		if !exists {
			continue
		}
		for name := range union(before, after) {
			x, had := before[name]
			y, has := after[name]
			if had != has || !same(x, y) {
				field := fmt.Sprintf("%s.env[%s]", container, name)
				edits = append(edits, edit{field: field, was: show(x), is: show(y), now: y, added: !had && has})
			}
		}
	}
	return edits
}

// read matches the names of variables that a loader, a shell, a runtime or a framework may read.
var read = regexp.MustCompile(`^(_?LD_|GCONV_|LOCPATH|MALLOC_|GLIBC_|CUDA|NVML_|NCCL_|UCX_|OMPI_|OMP_|MKL_|` +
	`NVIDIA_(VISIBLE|DRIVER|REQUIRE|DISABLE|IMEX|MIG|GDS|CTK|MOFED|NVSWITCH)|` +
	`PYTHON|TORCH|PYTORCH_|TF_|XLA_|JAX_|TRITON_|TRAIN|CHECKPOINT|LAB_|FRAMEWORK|BASH_|NODE_|JAVA_|PERL|RUBY|GO|` +
	`SSL_|HTTP|XDG_|TMP|TEMP|(PATH|HOME|ENV|IFS|SHELL|USER|PWD)$)`)

// withoutHelpers returns the edits except those of helpers. A helper is a new variable that another edited variable of
// the same container refers to as $(NAME), such as DRIVER_DIR in LD_LIBRARY_PATH=$(DRIVER_DIR)/lib64. Any program may
// read any variable, so a helper contains only paths, a number or the value of a Secret, and its name has no known
// meaning.
func withoutHelpers(edits []edit, of *object) []edit {
	refersTo := map[string][]string{} // the variables that refer to a variable, both as fields
	spec := mapAt(of.body, "spec", "template", "spec")
	for _, list := range []string{"initContainers", "containers"} {
		items, _ := spec[list].([]any)
		for _, each := range items {
			container, _ := each.(map[string]any)
			variables, _ := container["env"].([]any)
			for _, each := range variables {
				variable, _ := each.(map[string]any)
				value, _ := variable["value"].(string)
				field := func(name any) string {
					return fmt.Sprintf("spec.template.spec.%s[%v].env[%v]", list, container["name"], name)
				}
				for _, name := range expr.References(value) {
					refersTo[field(name)] = append(refersTo[field(name)], field(variable["name"]))
				}
			}
		}
	}
	helps := map[string]bool{} // by field; false for what may be a helper
	for _, e := range edits {
		if mayHelp(e) {
			helps[e.field] = false
		}
	}
	for found := true; found; { // a helper may have helpers
		found = false
		for field, known := range helps {
			if !known && slices.ContainsFunc(refersTo[field], func(by string) bool {
				helper, maybe := helps[by]
				return helper || !maybe && slices.ContainsFunc(edits, func(e edit) bool { return e.field == by })
			}) {
				helps[field], found = true, true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(edits), func(e edit) bool { return helps[e.field] })
}

// mayHelp reports whether an edit adds a variable that can be useful only in the values of other variables.
func mayHelp(e edit) bool {
	value, _ := e.now.(string)
	at := segments(e.field)
	paths := !slices.ContainsFunc(strings.Split(value, ":"),
		func(dir string) bool { return !strings.HasPrefix(dir, "/") })
	return e.added && !read.MatchString(at[len(at)-1]) && (paths || number.MatchString(value) || Hashed(value))
}

var number = regexp.MustCompile(`^[0-9]+$`)

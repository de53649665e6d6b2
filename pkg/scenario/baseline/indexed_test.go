package baseline

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func parsedObject(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// The Job controller adds the index to the environment of each pod. If that counted as a difference, every namespace
// with an Indexed Job would seem to have a webhook that changes pods, and forged pods would go unnoticed there.
func TestPodsOfIndexedJobsAreGenuine(t *testing.T) {
	t.Parallel()
	job := parsedObject(t, `{kind: Job, spec: {template: {spec: {containers: [
  {name: main, image: trainer, env: [{name: A, value: x}]}]}}}}`)
	index := "{name: JOB_COMPLETION_INDEX, valueFrom: {fieldRef: {fieldPath: 'metadata.annotations[x]'}}}"
	for pod, want := range map[string]string{
		"{name: main, image: trainer, env: [{name: A, value: x}, " + index + "]}": "",
		"{name: main, image: busybox, env: [{name: A, value: x}, " + index + "]}": "spec.containers[main].image",
		"{name: main, image: trainer, env: [" + index + "]}":                      "spec.containers[main].env",
		"{name: main, image: trainer, env: [{name: A, value: x}, {name: JOB_COMPLETION_INDEX, value: '7'}]}": "spec." +
			"containers[main].env",
	} {
		if got := unlike(job, parsedObject(t, "{spec: {containers: ["+pod+"]}}"), nil); got != want {
			t.Errorf("%s: %q, not %q", pod, got, want)
		}
	}
}

// A note that a candidate puts on a node with any client is found and removed in the end. What the node's components
// write continuously is not.
func TestAnnotationsOfNewClients(t *testing.T) {
	t.Parallel()
	before := captured(t, Options{}, `{apiVersion: v1, kind: Node, metadata: {name: n1, uid: u, annotations: {c.io/a: "1"},
  managedFields: [{manager: kubelet, fieldsV1: {"f:metadata": {"f:annotations": {"f:c.io/a": {}}}}}]}}`)
	now := `{apiVersion: v1, kind: Node, metadata: {name: n1, uid: u, annotations: {c.io/a: "2", d.io/b: x},
  managedFields: [{manager: kubelet, fieldsV1: {"f:metadata": {"f:annotations": {"f:c.io/a": {}}}}},
    {manager: hardware, operation: Apply, fieldsV1: {"f:metadata": {"f:annotations": {"f:d.io/b": {}}}}}]}}`
	stored, err := before.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if before, err = Decode(stored); err != nil {
		t.Fatal(err)
	}
	found := Diff(before, captured(t, Options{Since: before}, now))
	if len(found) != 1 || found[0].String() != `Node n1 changed: metadata.annotations["d.io/b"] (not set, now x)` {
		t.Errorf("%v", found)
	}
	if found := Diff(before, captured(t, Options{}, now)); len(found) != 0 {
		t.Errorf("without an earlier baseline: %v", found)
	}
}

// An annotation that controllers obey is compared even if the proof of who set it is gone.
func TestObeyedAnnotations(t *testing.T) {
	t.Parallel()
	node := func(value string) string {
		return "{apiVersion: v1, kind: Node, metadata: {name: n, uid: u, annotations: {" +
			"node.alpha.kubernetes.io/ttl: '" + value + "', volumes.kubernetes.io/controller-managed-attach-detach: '" + value + "'}}}"
	}
	before := captured(t, Options{}, node("true"))
	after := captured(t, Options{Since: before}, node("false"))
	want := []string{`changed Node / metadata.annotations["volumes.kubernetes.io/controller-managed-attach-detach"]: ` +
		"true -> false"}
	if got := lines(Diff(before, after)); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

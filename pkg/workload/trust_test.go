package workload

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
)

// A record is written by whoever may write ConfigMaps in the ledger's namespace, and undone with the rights of another: it gets nothing
// done but the undo of what an Injection does to the step's target.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	main := path("spec", "template", "spec", "containers").then(element("name", "main"))
	preload := main.then(field("env"), element("name", "LD_PRELOAD"))
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	for name, test := range map[string]struct {
		forge func(d *Data, target *ledger.Target)
		want  string
	}{
		"another name":      {func(_ *Data, target *ledger.Target) { target.Name = "other" }, "its step about"},
		"another namespace": {func(_ *Data, target *ledger.Target) { target.Namespace = "other" }, "its step about"},
		"another kind":      {func(_ *Data, target *ledger.Target) { target.Kind = "StatefulSet" }, "its step about"},
		"another UID":       {func(_ *Data, target *ledger.Target) { target.UID = "u2" }, "the UID"},
		"no UID":            {func(_ *Data, target *ledger.Target) { target.UID = "" }, "does not name the object's UID"},
		"kube-system": {func(d *Data, target *ledger.Target) { d.Namespace, target.Namespace = "kube-system", "kube-system" },
			"namespace kube-system is protected"},
		"the ledger": {func(d *Data, target *ledger.Target) { d.Namespace, target.Namespace = "gpu-fault", "gpu-fault" },
			"namespace gpu-fault is protected"},
		"a resource of another kind": {func(d *Data, _ *ledger.Target) { d.Kind, d.Group = "Deployment", "apps"; d.Resource = "statefulsets" }, ""},
		"a pod":                      {func(d *Data, target *ledger.Target) { d.Kind, target.Kind = "Pod", "Pod" }, "a pod has no template"},
		"an image": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: main.then(field("image")), Ours: raw(`"i"`), Was: raw(`"evil"`)}
		}, "is no place that is ever changed so"},
		"replicas": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: path("spec", "replicas"), Ours: raw(`1`), Was: raw(`0`)}
		}, "is no place"},
		"a volume of the user": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: path("spec", "template", "spec", "volumes").then(element("name", "data")), Ours: raw(`{"name":"data"}`)}
		}, "is no place"},
		"a volume before": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: path("spec", "template", "spec", "volumes").then(element("name", volumeLib)), Ours: raw(`{"name":"x"}`), Was: raw(`{"hostPath":{"path":"/"}}`)}
		}, "is no place"},
		"another variable": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: main.then(field("env"), element("name", "TOKEN"), field("value")), Ours: raw(`"a"`), Was: raw(`"b"`)}
		}, "is no place"},
		"a library that was not before": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: preload.then(field("value")), Ours: raw(`"/gpu-fault/lib/libgpufault.so:/a.so"`), Was: raw(`"/evil.so"`)}
		}, "it was not"},
		"a value without ours": {func(d *Data, _ *ledger.Target) {
			d.Edits[0] = Edit{Path: preload.then(field("value")), Ours: raw(`"/a.so"`), Was: raw(`"/evil.so"`)}
		}, "our library is not in"},
		"a library of theirs": {func(d *Data, _ *ledger.Target) { d.Preload = "/a.so" }, "is no library of ours"},
		"the user's affinity": {func(d *Data, _ *ledger.Target) {
			d.Pin = raw(`{"key":"kubernetes.io/hostname","operator":"In","values":["n1"]}`)
			d.Edits[0] = Edit{Path: requiredTerms(path("spec", "template", "spec")), Ours: raw(`[{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]}]`)}
		}, "not the former value with the node pin"},
		"another affinity before": {func(d *Data, _ *ledger.Target) {
			d.Pin = raw(`{"key":"kubernetes.io/hostname","operator":"In","values":["n1"]}`)
			d.Edits[0] = Edit{Path: requiredTerms(path("spec", "template", "spec")), Ours: raw(`[{"matchExpressions":[` + string(d.Pin) + `]}]`), Was: raw(`[{"matchExpressions":[{"key":"zone","operator":"Exists"}]}]`)}
		}, "not the former value with the node pin"},
		"a pod to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{Original: raw(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"team"},"spec":{"containers":[{"name":"a","image":"b"}]}}`)}
		}, "it holds pod/web"},
		"one without a template to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{Original: raw(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"team"}}`)}
		}, "no pod template"},
		"one of another namespace to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{Original: raw(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"x"}}`)}
		}, "in namespace x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, web)
			found := w.find("deployment/web")
			_, d := injected(t, found, Selection{}, false)
			d.UID = string(found.Object.GetUID())
			target := targetOf(d)
			test.forge(d, &target)
			_, said, err := w.undo(ledger.Step{Target: target, Undo: ledger.Undo{Kind: UndoKind, Data: encode(d)}})
			switch {
			case test.want == "" && (err != nil || !strings.Contains(said, "not there any more")):
				t.Errorf("%s, %v", said, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "not believed")):
				t.Errorf("%s, %v, not %q", said, err, test.want)
			}
			if len(w.calls) > 0 {
				t.Errorf("calls %v", w.calls)
			}
		})
	}
}

// An object that is not there is created only when the run's ConfigMap, which lies beside it, knows its content.
func TestNothingIsCreatedFromTheRecordAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		forge func(d *Data)
		want  ledger.State
	}{
		"as it was": {func(*Data) {}, ledger.StateReverted},
		"another content": {func(d *Data) {
			d.Recreated.Original = []byte(strings.Replace(string(d.Recreated.Original), `"image":"i"`, `"image":"evil"`, 1))
		}, ledger.StateSuperseded},
	} {
		w, found, r := recreated(t)
		if err := w.cluster.resource(found).Delete(t.Context(), "train", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		d, err := ReadData(r.step)
		if err != nil {
			t.Fatal(err)
		}
		d.Recreated.UID = "" // as if the client had died before it created it
		test.forge(d)
		calls := len(w.calls)
		state, said, err := w.undo(stepOf(d))
		created := strings.Contains(strings.Join(w.calls[calls:], " "), "create jobs")
		if err != nil || state != test.want || created != (test.want == ledger.StateReverted) {
			t.Errorf("%s: %s, %s, %v, calls %v", name, state, said, err, w.calls[calls:])
		}
	}
}

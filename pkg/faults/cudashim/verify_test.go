package cudashim

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// A record is written by whoever may write ConfigMaps in the ledger's namespace, and undone with the rights of another:
// it gets nothing done but the undo of what an Injection does to the step's target.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	for name, test := range map[string]struct {
		forge func(d *Data, target *ledger.Target)
		want  string
	}{
		"another name":      {func(_ *Data, target *ledger.Target) { target.Name = "other" }, "the step is for"},
		"another namespace": {func(_ *Data, target *ledger.Target) { target.Namespace = "other" }, "the step is for"},
		"another kind": {
			func(_ *Data, target *ledger.Target) { target.Kind = "StatefulSet" }, "the step is for",
		},
		"another UID": {func(_ *Data, target *ledger.Target) { target.UID = "u2" }, "with UID"},
		"no UID": {
			func(_ *Data, target *ledger.Target) { target.UID = "" }, "does not contain the object's UID",
		},
		"kube-system": {func(d *Data, target *ledger.Target) {
			d.Namespace, target.Namespace = "kube-system", "kube-system"
		},
			"namespace kube-system is protected"},
		"the ledger": {func(d *Data, target *ledger.Target) {
			d.Namespace, target.Namespace = "gpu-fault", "gpu-fault"
		},
			"namespace gpu-fault is protected"},
		"a resource of another kind": {
			func(d *Data, _ *ledger.Target) { d.Kind, d.Group = "Deployment", "apps"; d.Resource = "statefulsets" }, "",
		},
		"a pod": {
			func(d *Data, target *ledger.Target) { d.Kind, target.Kind = "Pod", "Pod" }, "a pod has no template",
		},
		"a value that the injection would have removed": {
			func(d *Data, _ *ledger.Target) {
				d.Edits[0].Was, d.Edits[0].Ours = raw(`"evil"`), raw(`null`)
			}, "invalid values",
		},
		"an element that the injection would have replaced": {
			func(d *Data, _ *ledger.Target) {
				d.Edits[0].Element, d.Edits[0].Was = true, raw(`{"a":1}`)
			}, "invalid values",
		},
		"a pod to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{Original: raw(
				`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"team"},"spec":{"containers":[{"name":"a","image":"b"}]}}`,
			)}
		}, "its original object is pod/web"},
		"one without a template to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{
				Original: raw(
					`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"team"}}`,
				),
			}
		}, "no pod template"},
		"one of another namespace to create": {func(d *Data, _ *ledger.Target) {
			d.Recreated = &Recreated{
				Original: raw(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"x"}}`),
			}
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
			_, said, err := w.undoAsRecorded(
				ledger.Step{Target: target, Undo: ledger.Undo{Kind: UndoKind, Data: kubeedit.Encode(d)}},
			)
			switch {
			case test.want == "" && (err != nil || !strings.Contains(said, "no longer exists")):
				t.Errorf("%s, %v", said, err)
			case test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "rejected")):
				t.Errorf("%s, %v, not %q", said, err, test.want)
			}
			if len(w.calls) > 0 {
				t.Errorf("calls %v", w.calls)
			}
		})
	}
}

// A record that no ConfigMap vouches for changes nothing, whatever it says of an object that carries the shim, and of
// one that does not.
func TestForgedUndoIsRejected(t *testing.T) {
	t.Parallel()
	main := kubeedit.Fields("spec", "template", "spec", "containers").Then(kubeedit.Element("name", "main"))
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	for name, forge := range map[string]func(d *Data){
		"an image": func(d *Data) {
			d.Edits[0] = kubeedit.Edit{Path: main.Then(kubeedit.Field("image")), Ours: raw(`"i"`), Was: raw(`"evil"`)}
		},
		"a volume of the user": func(d *Data) {
			d.Edits[0].Path = kubeedit.Fields("spec", "template", "spec",
				"volumes").Then(kubeedit.Element("name", "data"))
		},
		"a library before": func(d *Data) { d.Edits[0].Was = raw(`"/evil.so"`) },
		"the user's affinity": func(d *Data) {
			d.Pin = raw(`{"key":"kubernetes.io/hostname","operator":"In","values":["n1"]}`)
		},
		"another library": func(d *Data) { d.Preload = "/opt/mine.so" },
		"another state":   func(d *Data) { d.Disarmed = []byte("armed") },
		"fewer edits":     func(d *Data) { d.Edits = d.Edits[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, web)
			if err := w.client.Tracker().Add(started("web-1")); err != nil {
				t.Fatal(err)
			}
			found := w.find("deployment/web")
			r := &recorder{world: w}
			if _, err := w.injection(found).Change("inject").Apply(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			d, err := ReadData(r.step)
			if err != nil {
				t.Fatal(err)
			}
			forge(d)
			calls := len(w.calls)
			_, _, err = w.undoAsRecorded(stepOf(d))
			if broken := (*seal.BrokenError)(nil); !errors.As(err, &broken) || len(w.calls) > calls {
				t.Errorf("%v, calls %v", err, w.calls[calls:])
			}
			if state, said, err := w.undoAsRecorded(r.step); err != nil || state != ledger.StateReverted {
				t.Errorf("the genuine record: %s, %s, %v", state, said, err)
			}
			if state, said, err := w.undoAsRecorded(r.step); err != nil || state != ledger.StateReverted {
				t.Errorf("once more: %s, %s, %v", state, said, err)
			}
		})
	}
}

// What another client wrote meanwhile is recorded anew, and a client that dies before the record has it leaves a seal
// for the record that is there.
func TestSealsOfEarlierRecordsStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, web)
	if err := w.client.Tracker().Add(started("web-1")); err != nil {
		t.Fatal(err)
	}
	r := &recorder{world: w}
	if _, err := w.injection(w.find("deployment/web")).Change("inject").Apply(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	d, err := ReadData(r.step)
	if err != nil {
		t.Fatal(err)
	}
	keeper := configMapKeeper{w.client, "team", run}
	newer := *d
	newer.Before = "newer"
	if err := keeper.Keep(t.Context(), newer.seal(run)); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]*Data{"the recorded one": d, "the one that is about to be recorded": &newer} {
		if kept, err := keeper.Has(t.Context(), data.seal(run)); err != nil || !kept {
			t.Errorf("%s: %t, %v", name, kept, err)
		}
	}
	for i := range 2 * mostSeals {
		newer.Before = fmt.Sprint(i)
		if err := keeper.Keep(t.Context(), newer.seal(run)); err != nil {
			t.Fatal(err)
		}
	}
	cm, err := w.client.CoreV1().ConfigMaps("team").Get(t.Context(), Name(run), metav1.GetOptions{})
	if seals := strings.Fields(cm.Annotations[annotationSeals]); err != nil || len(seals) != mostSeals ||
		seals[mostSeals-1] != string(newer.seal(run)) {
		t.Errorf("%d seals, %v", len(seals), err)
	}
}

// An object that is not there is created only when the run's ConfigMap, which is beside it, vouches for its content.
func TestNothingIsCreatedFromTheRecordAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		forge func(d *Data)
		want  ledger.State
	}{
		"as it was": {func(*Data) {}, ledger.StateReverted},
		"another content": {func(d *Data) {
			d.Recreated.Original = []byte(
				strings.Replace(string(d.Recreated.Original), `"image":"i"`, `"image":"evil"`, 1),
			)
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
		w.sealStep(stepOf(d))
		test.forge(d)
		calls := len(w.calls)
		state, said, err := w.undoAsRecorded(stepOf(d))
		created := strings.Contains(strings.Join(w.calls[calls:], " "), "create jobs")
		if err != nil || state != test.want || created != (test.want == ledger.StateReverted) {
			t.Errorf("%s: %s, %s, %v, calls %v", name, state, said, err, w.calls[calls:])
		}
	}
}

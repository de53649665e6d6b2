package cudashim

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// In every kind the shim gets into the right containers, what the user had is kept, and the undo gives exactly the
// former object.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("testdata/kinds")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d kinds, %v", len(files), err)
	}
	var all strings.Builder
	for _, file := range files {
		name, isYAML := strings.CutSuffix(file.Name(), ".yaml")
		if !isYAML {
			continue
		}
		w := kind(t, name)
		before := w.Object.DeepCopy()
		with, d := injected(t, w, Selection{}, true)
		fmt.Fprintf(&all, "%s: templates %s; pods are replaced: %s\n", w.Ref(), templateNames(w.Templates),
			w.Replacement())
		for _, e := range d.Edits {
			fmt.Fprintf(&all, "  %s\n", describe(e))
		}
		if diff := cmp.Diff(before.Object, w.Object.Object); diff != "" {
			t.Errorf("%s: the injection changed what it was given:\n%s", name, diff)
		}
		if got := with.Run(); got != run {
			t.Errorf("%s: it does not tell its run: %q", name, got)
		}
		removed := fromLedger(t, d).removeEdits(with.Object, run)
		if diff := cmp.Diff(before.Object, removed.object); diff != "" || len(removed.kept) > 0 {
			t.Errorf("%s: the undo does not restore it; kept %q:\n%s", name, removed.kept, diff)
		}
		if again := fromLedger(t, d).removeEdits(before, run); again.changed || len(again.kept) > 0 {
			t.Errorf("%s: the undo is not idempotent: %s, %v", name, kubeedit.Encode(again.object), again.kept)
		}
	}
	golden.Compare(t, "kinds.txt", all.String())
}

// fromLedger is data as it comes back from the ledger.
func fromLedger(t testing.TB, d *Data) *Data {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Data
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.validate(); err != nil {
		t.Fatal(err)
	}
	return &back
}

func TestSelect(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind      string
		selection Selection
		want      string // containers, or a part of the error
	}{
		"those with GPUs": {"deployment", Selection{}, "main"},
		"by name":         {"deployment", Selection{Containers: []string{"exporter", "setup"}}, "exporter setup"},
		"unknown container": {
			"deployment", Selection{Containers: []string{"mian"}},
			`no container "mian": supported values: exporter, istio-proxy, main, setup`,
		},
		"no sidecars":        {"statefulset", Selection{}, "a"},
		"a sidecar, by name": {"statefulset", Selection{Containers: []string{"istio-proxy"}}, "istio-proxy"},
		"a service":          {"dynamographdeployment", Selection{Services: []string{"Frontend"}}, "main"},
		"unknown service": {
			"dynamographdeployment", Selection{Services: []string{"Decoder"}},
			"supported values: services.Decode, services.Frontend, services.Prefill",
		},
		"services with GPUs": {"dynamographdeployment", Selection{}, "main main"},
		"MIG counts":         {"jobset", Selection{}, "trainer"},
		"service of a web":   {"deployment", Selection{Services: []string{"x"}}, "no service or template"},
		"a template twice":   {"pytorchjob", Selection{Services: []string{"Worker", "Worker"}}, "pytorch"},
		"container of a worker": {
			"mpijob", Selection{Services: []string{"Worker"}, Containers: []string{"launcher"}},
			`no container "launcher"`,
		},
	} {
		chosen, err := kind(t, test.kind).Select(test.selection)
		var names []string
		for _, c := range chosen {
			for _, container := range c.Containers {
				names = append(names, container.Name)
			}
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != test.want || err != nil && !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, not %q", name, got, test.want)
		}
	}
}

// What cannot be added without breaking something of the user's is refused, and says what.
func TestRefusedTemplates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, want string }{
		"valueFrom": {
			`{"name":"c","image":"i","env":[{"name":"LD_PRELOAD","valueFrom":{"configMapKeyRef":{"name":"x","key":"y"}}}]}`,
			"reads LD_PRELOAD from another object",
		},
		"mounted there": {
			`{"name":"c","image":"i","volumeMounts":[{"name":"x","mountPath":"/gpu-fault/lib"}]}`,
			"already mounts a volume at /gpu-fault/lib",
		},
	} {
		w := kind(t, "statefulset")
		container := kubeedit.Decode(json.RawMessage(test.change))
		kubeedit.Map(w.Object.Object, kubeedit.Fields("spec", "template", "spec"))["containers"] = []any{container}
		w = workloadOf(w.Object)
		in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
		if _, _, _, err := in.put(w, in.newAdditions(run)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	with, _ := injected(t, kind(t, "jobset"), Selection{}, false)
	in := &Injection{Libraries: map[string][]byte{"amd64": nil}}
	if _, _, _, err := in.put(with, in.newAdditions("cuda-other")); err == nil || !strings.Contains(err.Error(), run) {
		t.Errorf("a second injection does not name the first: %v", err)
	}
}

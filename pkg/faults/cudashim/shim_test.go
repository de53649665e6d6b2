package cudashim

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

func labShim(t *testing.T, archs ...string) Shim {
	t.Helper()
	s := Shim{ConfigMap: "lab-gpu-k7x2", Libraries: map[string][]byte{}}
	for _, arch := range archs {
		library, err := cudafault.Library(arch, cudafault.LayerDriver)
		if err != nil {
			t.Fatal(err)
		}
		s.Libraries[arch] = library
	}
	state, err := cudafault.Fault{MemLimit: 16 << 30, Quiet: true}.State("scenario-bcdfgh", 1, time.Now(), time.Time{})
	if err == nil {
		s.State, err = state.Encode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func manifest(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = object.UnmarshalJSON(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// Nothing that lies in the ConfigMap, or in its name and keys, says what it is; and every library that this program
// carries can be made so.
func TestALabsConfigMapTellsNothing(t *testing.T) {
	t.Parallel()
	s := labShim(t, "amd64", "arm64")
	for _, layer := range []cudafault.Layer{cudafault.LayerDriver, cudafault.LayerRuntime} {
		for arch := range s.Libraries {
			library, err := cudafault.Library(arch, layer)
			if err != nil {
				t.Fatal(err)
			}
			neutral, err := s.withDefaults().neutralLibrary(library)
			if err != nil || len(neutral) != len(library) ||
				!bytes.Contains(neutral, []byte("/opt/gpu-lab/state\x00")) ||
				!bytes.Contains(neutral, []byte("/run/gpu-lab/processes\x00")) ||
				!bytes.Contains(neutral, []byte("NODE_NAME\x00")) {
				t.Errorf("%s %s: %v", layer, arch, err)
			}
		}
	}
	cm, err := ShimConfigMap("team-a", s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cm.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	data, _, _ := unstructured.NestedStringMap(cm.Object, "binaryData")
	readable := map[string][]byte{"the manifest": text}
	for key, value := range data {
		if readable[key], err = base64.StdEncoding.DecodeString(value); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range readable {
		for _, word := range []string{"fault", "scenario"} {
			if bytes.Contains(bytes.ToLower(content), []byte(word)) {
				t.Errorf("%s says %q", name, word)
			}
		}
	}
	for _, broken := range []Shim{
		{ConfigMap: "x", Libraries: map[string][]byte{"amd64": []byte("\x7fELF")}, State: s.State},
		{ConfigMap: "x", Libraries: s.Libraries, State: []byte("armed")},
		{ConfigMap: "x", Libraries: s.Libraries, State: append(bytes.Clone(s.State[:1023]), 1)},
		{Libraries: s.Libraries, State: s.State},
		{ConfigMap: "x", Libraries: s.Libraries, State: s.State, Dir: "/a/folder/too/long"},
		{ConfigMap: "x", Libraries: s.Libraries, State: s.State, Dir: "relative"},
		{ConfigMap: "x", Libraries: s.Libraries, State: s.State, Dir: ShimRunDir},
		{ConfigMap: "x", Libraries: s.Libraries, State: s.State, Library: "a:b.so"},
	} {
		if _, err := ShimConfigMap("team-a", broken); err == nil {
			t.Errorf("%+v is taken", broken.ConfigMap)
		}
	}
}

// The shim comes into the containers that ask for GPUs, or where none does into all but init containers, of every kind
// that has pods; the user's own LD_PRELOAD stays behind it, and everything else as it was.
func TestAddShim(t *testing.T) {
	t.Parallel()
	const gpu, plain = `{name: g, image: x, env: [{name: A, value: a}], resources: {limits: {nvidia.com/gpu: 1}}}`,
		`{name: p, image: z, env: [{name: LD_PRELOAD, value: /j.so}]}`
	for name, test := range map[string]struct {
		text string
		want []string // container=LD_PRELOAD
	}{
		"a pod": {
			`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [` + gpu + `, ` + plain + `]}}`,
			[]string{"g=/opt/gpu-lab/libgpu-lab.so"},
		},
		"a deployment": {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {template: {spec: {containers: [` +
			plain + `], initContainers: [{name: i, image: z}]}}}}`, []string{"p=/opt/gpu-lab/libgpu-lab.so:/j.so"}},
		"a statefulset": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x}, spec: {template: {spec: {containers: [` +
				gpu + `]}}}}`,
			[]string{"g=/opt/gpu-lab/libgpu-lab.so"},
		},
		"a job": {`{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {template: {spec: {containers: [` +
			gpu + `], restartPolicy: Never}}}}`, []string{"g=/opt/gpu-lab/libgpu-lab.so"}},
		"a cron job": {
			`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {jobTemplate: {spec: {template: {spec: {containers: [` +
				gpu + `]}}}}}}`,
			[]string{"g=/opt/gpu-lab/libgpu-lab.so"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := manifest(t, test.text)
			s := labShim(t, "amd64")
			if err := AddShim(object, s); err != nil {
				t.Fatal(err)
			}
			var got []string
			var walk func(any)
			walk = func(v any) {
				switch v := v.(type) {
				case map[string]any:
					for _, e := range kubeedit.List(v, kubeedit.Fields("env")) {
						if variable, _ := e.(map[string]any); variable["name"] == PreloadVar &&
							v["volumeMounts"] != nil {
							got = append(got, v["name"].(string)+"="+variable["value"].(string))
						}
					}
					for _, name := range sortedKeys(v) {
						walk(v[name])
					}
				case []any:
					for _, e := range v {
						walk(e)
					}
				}
			}
			walk(object.Object)
			text, err := json.Marshal(object.Object)
			if err != nil || !slices.Equal(got, test.want) ||
				strings.Contains(strings.ReplaceAll(string(text), "defaultMode", ""), "fault") {
				t.Errorf("%v %v: %s", err, got, text)
			}
			if err := AddShim(object, s); err == nil {
				t.Error("it is put in twice")
			}
		})
	}
	for _, text := range []string{
		`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, image: x, env: [{name: NODE_NAME, value: mine}]}]}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, image: x, env: [{name: LD_PRELOAD, valueFrom: {fieldRef: {fieldPath: a}}}]}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, image: x}], volumes: [{name: gpu-lab}]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, image: x, volumeMounts: [{name: b, mountPath: /opt/gpu-lab}]}]}}`,
	} {
		if err := AddShim(manifest(t, text), labShim(t, "amd64")); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

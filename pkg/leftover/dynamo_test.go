package leftover

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// dynamoWorld returns a cluster in which Dynamo's tooling was used, beside things of the user's that look alike.
func dynamoWorld(t *testing.T) *world {
	t.Helper()
	documents, err := os.ReadFile("testdata/dynamo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, string(documents))
}

func TestWhatIsDynamos(t *testing.T) {
	t.Parallel()
	golden.Compare(t, "dynamo.golden", strings.Join(lines(dynamoWorld(t).find().Items), "\n")+"\n")
}

// Doubtful things are told, and left.
func TestDoubts(t *testing.T) {
	t.Parallel()
	for _, l := range dynamoWorld(t).find().Items {
		if l.Kind != kindGraph {
			continue
		}
		want := []string{
			"nodeAffinity kubernetes.io/hostname In [gpu-1] may be from the tool: check it",
			"updateStrategy maxUnavailable 100% may be from the tool: check it",
		}
		if diff := cmp.Diff(want, l.Doubts); diff != "" {
			t.Errorf("doubts (-want +got):\n%s", diff)
		}
		return
	}
	t.Error("the graph was not found")
}

// What is taken out of a pod spec is exactly what the tool added.
func TestTakingOut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, after string }{
		"nothing of it": {
			before: `{containers: [{name: a, env: [{name: LD_PRELOAD, value: "/lib/a.so"}, {name: CUDA_VISIBLE_DEVICES, value: "0"}], volumeMounts: [{name: data, mountPath: /d}]}], volumes: [{name: data, emptyDir: {}}]}`,
			after:  `{containers: [{name: a, env: [{name: LD_PRELOAD, value: "/lib/a.so"}, {name: CUDA_VISIBLE_DEVICES, value: "0"}], volumeMounts: [{name: data, mountPath: /d}]}], volumes: [{name: data, emptyDir: {}}]}`,
		},
		"the user's library stays, and so does the order of the rest": {
			before: `{containers: [{name: a, env: [{name: A, value: "1"}, {name: LD_PRELOAD, value: "/lib/a.so:/cuda-fault/cuda_intercept.so:/lib/b.so"}, {name: CUDA_XID_TYPE, value: "79"}, {name: B, value: "2"}]}]}`,
			after:  `{containers: [{name: a, env: [{name: A, value: "1"}, {name: LD_PRELOAD, value: "/lib/a.so:/lib/b.so"}, {name: B, value: "2"}]}]}`,
		},
		"a library from elsewhere is not the tool's": {
			before: `{containers: [{name: a, env: [{name: LD_PRELOAD, valueFrom: {configMapKeyRef: {name: x, key: y}}}, {name: CUDA_XID_TYPE, value: "79"}]}]}`,
			after:  `{containers: [{name: a, env: [{name: LD_PRELOAD, valueFrom: {configMapKeyRef: {name: x, key: y}}}]}]}`,
		},
		"volumes, mounts in all containers, and the init container": {
			before: `{initContainers: [{name: decode-cuda-fault-lib}, {name: mine, volumeMounts: [{name: cuda-fault-lib, mountPath: /x}, {name: data, mountPath: /d}]}],
containers: [{name: a, volumeMounts: [{name: cuda-fault-lib, mountPath: /cuda-fault}]}],
volumes: [{name: cuda-fault-lib-source, configMap: {name: cuda-fault-injection-lib}}, {name: data, emptyDir: {}}, {name: cuda-fault-lib, emptyDir: {}}]}`,
			after: `{initContainers: [{name: mine, volumeMounts: [{name: data, mountPath: /d}]}], containers: [{name: a}], volumes: [{name: data, emptyDir: {}}]}`,
		},
		// Somebody may have taken the name for something of their own.
		"a volume that only has the name": {
			before: `{containers: [{name: a, volumeMounts: [{name: cuda-fault-lib, mountPath: /x}]}], volumes: [{name: cuda-fault-lib, persistentVolumeClaim: {claimName: mine}}]}`,
			after:  `{containers: [{name: a, volumeMounts: [{name: cuda-fault-lib, mountPath: /x}]}], volumes: [{name: cuda-fault-lib, persistentVolumeClaim: {claimName: mine}}]}`,
		},
		"affinity is the user's": {
			before: `{affinity: {nodeAffinity: {}}, containers: [{name: a, env: [{name: CUDA_FAULT_AFTER_STEP, value: "1"}]}]}`,
			after:  `{affinity: {nodeAffinity: {}}, containers: [{name: a}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, want := map[string]any{}, map[string]any{}
			if err := yaml.Unmarshal([]byte(tc.before), &spec); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tc.after), &want); err != nil {
				t.Fatal(err)
			}
			first := withoutDynamo(place{spec: spec})
			if diff := cmp.Diff(want, spec); diff != "" {
				t.Errorf("after it (-want +got):\n%s", diff)
			}
			if (tc.before != tc.after) != (len(first.gone) > 0) {
				t.Errorf("it says that it took %v", first.gone)
			}
			if again := withoutDynamo(place{spec: spec}); len(again.gone) > 0 {
				t.Errorf("a second time it took %v", again.gone)
			}
		})
	}
}

func TestWithoutLibraries(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                               "",
		"/lib/a.so":                      "/lib/a.so",
		" /lib/a.so : ":                  " /lib/a.so : ", // as it was, since nothing is taken
		"/tmp/cuda_intercept.so":         "",
		"/tmp/cuda_intercept.so:":        "",
		"cuda_intercept.so /lib/a.so":    "/lib/a.so",
		"/a.so:/x/cuda_intercept.so /b":  "/a.so /b",
		"/a.so  /x/fake_cuda_xid79.so":   "/a.so",
		"/x/not_cuda_intercept.so:/b.so": "/x/not_cuda_intercept.so:/b.so",
		"/x/cuda_intercept.so.1":         "/x/cuda_intercept.so.1",
	} {
		if got, _ := withoutLibraries(value, dynamoLibraries); got != want {
			t.Errorf("%q became %q, wanted %q", value, got, want)
		}
	}
}

// Whatever LD_PRELOAD says, the libraries of the user's stay, in their order, and the tool's are gone.
func FuzzWithoutLibraries(f *testing.F) {
	for _, seed := range []string{
		"", "/a.so:/b.so", "/x/cuda_intercept.so", "/a.so: /x/cuda_intercept.so :/b.so", ":::",
		"cuda_intercept.so cuda_intercept.so",
	} {
		f.Add(seed)
	}
	split := func(value string) []string {
		return strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })
	}
	f.Fuzz(func(t *testing.T, value string) {
		rest, taken := withoutLibraries(value, dynamoLibraries)
		var want []string
		ours := 0
		for _, library := range split(value) {
			if base := library[strings.LastIndex(library, "/")+1:]; base == dynamoLibraries[0] ||
				base == dynamoLibraries[1] {
				ours++
			} else {
				want = append(want, library)
			}
		}
		if strings.HasSuffix(value, "/") || strings.Contains(value, "/ ") || strings.Contains(value, "/:") {
			return // path.Base looks past slashes at the end
		}
		if diff := cmp.Diff(want, split(rest), cmpopts.EquateEmpty()); diff != "" || len(taken) != ours {
			t.Errorf("of %q stayed %q, and %d were taken, wanted %d (-want +got):\n%s", value, rest, len(taken), ours,
				diff)
		}
		if again, more := withoutLibraries(rest, dynamoLibraries); again != rest || len(more) > 0 {
			t.Errorf("of %q a second time stayed %q", rest, again)
		}
	})
}

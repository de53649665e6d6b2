package scenario

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// withoutSource compares scenarios by what they say, and not by where they were read.
var withoutSource = cmpopts.IgnoreUnexported(Scenario{})

func good(t testing.TB) *Scenario {
	t.Helper()
	s, err := Load(filepath.Join("testdata", "good.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGoodFile holds that the file which the other tests change is right: neither Parse nor Lint finds anything.
func TestGoodFile(t *testing.T) {
	t.Parallel()
	s := good(t)
	for _, p := range s.Lint() {
		t.Errorf("%v (warning: %v)", &p, p.Warning)
	}
	if s.Sealed.Grade.StableFor.Std().String() != "10s" || s.Metadata.Minutes != 15 {
		t.Errorf("read wrongly: %+v", s.Sealed.Grade)
	}
}

// TestParseErrors holds that every file in testdata/bad is refused with all that is wrong in it, each with its place,
// in words that say what to do.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(filepath.Base(file), data)
			var first *ParseError
			if !errors.As(err, &first) || first.File != filepath.Base(file) {
				t.Fatalf("no ParseError of the file: %v", err)
			}
			golden.Compare(t, "bad/"+strings.TrimSuffix(filepath.Base(file), ".yaml")+".txt", err.Error()+"\n")
		})
	}
}

// TestAgreesWithKubernetesYAML holds that our reading of a file, which knows places, makes the same of it as the
// library of all Kubernetes tools.
func TestAgreesWithKubernetesYAML(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := yaml.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	r := &reader{}
	root := r.read(data)
	root.settle()
	text, err := json.Marshal(root.plain())
	if err != nil || len(r.problems) > 0 {
		t.Fatal(err, r.problems)
	}
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestIntsStayInts holds that numbers in manifests and parameters are still whole after JSON: CEL does not add an int
// to a double.
func TestIntsStayInts(t *testing.T) {
	t.Parallel()
	r, err := good(t).Resolve(1, map[string]string{"variant": "count"}, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Resolved
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back, withoutSource, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("JSON changed it (-before +after):\n%s", diff)
	}
	spec := back.Inject[0].Create.Objects[0]["spec"].(map[string]any)
	if kind := reflect.TypeOf(spec["replicas"]).Kind(); kind != reflect.Int64 {
		t.Errorf("replicas is a %s", kind)
	}
	if _, is := back.Drawn["asked"].(int64); !is {
		t.Errorf("asked is a %T", back.Drawn["asked"])
	}
	if back.Facts.MostGPUs != 2 || back.Seed != 1 {
		t.Errorf("lost: %+v", back)
	}
}

// FuzzParse holds that no file makes Parse panic, hang, or take what Resolve and Lint then stumble over.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "testdata/good.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("a: &a [*a, *a]"))
	f.Add([]byte("{<<: {a: 1}, <<: [{b: 2}, 3], ? [x] : y}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f", data)
		if (s == nil) == (err == nil) {
			t.Fatal("neither a scenario nor an error, or both")
		}
		if err != nil {
			for _, p := range Places(err) {
				if p.Message == "" || p.File != "f" || p.Line < 0 || p.Column < 0 {
					t.Errorf("a problem without words or place: %+v", p)
				}
			}
			return
		}
		if _, err := s.Resolve(1, nil, SampleFacts()); err == nil {
			s.NeedsConsent()
		}
	})
}

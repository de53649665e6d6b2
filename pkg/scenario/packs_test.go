package scenario

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/packs"
)

// TestBuiltin holds that the scenarios of the program are right, and that Lint finds nothing in them.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	files, err := packs.Files()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Builtin(); err != nil {
		t.Error(err)
	}
	for file, data := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			s, err := Parse(file, data)
			if err != nil {
				t.Fatalf("\n%v", err)
			}
			if s.Metadata.Name+".yaml" != file {
				t.Errorf("the scenario %s is in %s", s.Metadata.Name, file)
			}
			for _, p := range s.Lint() {
				t.Errorf("%v (warning: %v)", &p, p.Warning)
			}
			// One that offered it alone would tell that nothing is broken.
			if !bytes.Contains(data, []byte("    component: [none, ")) ||
				!bytes.Contains(data, []byte("    mechanism: [nothing-is-broken, ")) {
				t.Error("the choices do not begin with none and nothing-is-broken")
			}
		})
	}
}

// TestFind holds that a mistyped name, or a word of it, finds the scenario that was meant.
func TestFind(t *testing.T) {
	t.Parallel()
	all := []*Scenario{
		{Metadata: Metadata{Name: "gpu-memory"}}, {Metadata: Metadata{Name: "wrong-role-binding"}},
		{Metadata: Metadata{Name: "noop"}},
	}
	for name, want := range map[string]string{
		"gpu-memroy":       "did you mean gpu-memory?",
		"GPU-Memory":       "did you mean gpu-memory?",
		"memory":           "did you mean gpu-memory?",
		"rolebinding":      "did you mean wrong-role-binding?",
		"role-bindng":      "did you mean wrong-role-binding?",
		"nop":              "did you mean noop?",
		"something-else-x": "./something-else-x.yaml",
	} {
		if err := unknownScenario(name, all); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, and not %q", name, err, want)
		}
	}
}

// TestParseAll holds that one broken file does not hide the others, and that two scenarios cannot have one name.
func TestParseAll(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseAll(map[string][]byte{"a.yaml": data, "b.yaml": data, "c.yaml": []byte("x")})
	if len(all) != 1 || err == nil ||
		!strings.Contains(err.Error(), "b.yaml: duplicate scenario name \"starved-trainer\", already used in a.yaml") ||
		!strings.Contains(err.Error(), "c.yaml:1:1: must be a map") {
		t.Errorf("%d scenarios, %v", len(all), err)
	}
}

// TestLoadErrors holds that what is no file says so.
func TestLoadErrors(t *testing.T) {
	t.Parallel()
	if _, err := Load("testdata/none.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := Load("testdata"); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("got %v", err)
	}
	if _, err := Load("/dev/zero"); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("what has no end: %v", err)
	}
	large := t.TempDir() + "/large.yaml"
	if err := os.WriteFile(large, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got %v", err)
	}
}

// What `scenario list` and completion read is a part of each scenario: it must be what the whole says.
func TestPublicPartsAreThoseOfTheScenarios(t *testing.T) {
	t.Parallel()
	whole, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	public, err := Listing()
	if err != nil || len(public) != len(whole) {
		t.Fatalf("%d public parts of %d scenarios: %v", len(public), len(whole), err)
	}
	for i, s := range whole {
		got := public[i]
		for what, pair := range map[string][2]any{
			"metadata": {got.Metadata, s.Metadata}, "requires": {got.Requires, s.Requires},
			"public": {got.Public, s.Public},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s: %s is %+v, want %+v", s.Metadata.Name, what, pair[0], pair[1])
			}
		}
	}
}

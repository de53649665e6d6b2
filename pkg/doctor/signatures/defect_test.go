package signatures

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// A row about a defect must not blame a release that has the fix, nor a program that only has a similar name.
func TestDefect(t *testing.T) {
	t.Parallel()
	d := &Defect{Images: []string{"kueue/kueue"}, Since: "v0.13.0", Fixed: []string{"v0.14.5", "v0.15.2"}}
	for image, want := range map[string]string{
		"registry.k8s.io/kueue/kueue:v0.15.1":           "v0.15.1",
		"registry.k8s.io/kueue/kueue:v0.15.2":           "",
		"registry.k8s.io/kueue/kueue:v0.15.2-rc.1":      "v0.15.2-rc.1",
		"registry.k8s.io/kueue/kueue:v0.14.4@sha256:00": "v0.14.4",
		"registry.k8s.io/kueue/kueue:v0.14.5":           "",
		"registry.k8s.io/kueue/kueue:v0.13.0":           "v0.13.0",
		"registry.k8s.io/kueue/kueue:v0.12.9":           "",
		"registry.k8s.io/kueue/kueue:v0.16.0":           "",
		"registry.k8s.io/kueue/kueue:main":              "",
		"registry.k8s.io/kueue/kueue":                   "",
		"registry:5000/kueue/kueue@sha256:00":           "",
		"registry:5000/mirror/kueue/kueue:0.15.1-gke.1": "0.15.1-gke.1",
		"registry.k8s.io/other-kueue/kueue:v0.15.1":     "",
		"registry.k8s.io/kueue/kueue-viz:v0.15.1":       "",
	} {
		lines := []Line{{Place: Spec, Evidence: finding.Evidence{Text: Program(image)}}}
		if _, got := d.in(lines); got != want {
			t.Errorf("%s: the release with the defect is %q, want %q", image, got, want)
		}
	}
	own := func(tags ...string) (lines []Line) {
		for i, tag := range tags {
			prefix := "program: "
			if i == 0 {
				prefix = "image: "
			}
			text := prefix + "kueue/kueue:" + tag
			lines = append(lines, Line{Place: Spec, Evidence: finding.Evidence{Text: text}})
		}
		return lines
	}
	if _, got := d.in(own("v0.15.2", "v0.15.1")); got != "" {
		t.Errorf("the pod has the fix, but %s of another pod is blamed", got)
	}
	for older, newer := range map[string]string{"0.6.3.post1": "0.6.4", "24.08-py3": "24.10", "v1.9.0": "v1.10.0"} {
		if d := (&Defect{Fixed: []string{newer}}); !d.has(older) || d.has(newer) {
			t.Errorf("%s is not older than %s", older, newer)
		}
	}
}

// The release decides among rows for the same message, and {version} is known to rows with a defect alone.
func TestDefectDecides(t *testing.T) {
	t.Parallel()
	const rows = `signatures:
- {id: bug, match: boom, defect: {images: [a/b], fixed: [v1.1.0]}, layer: workload, title: "b {version} has a bug",
   cause: c., fix: f., confidence: likely, example: boom}
- {id: other, match: boom, layer: workload, title: t, cause: c., fix: f., confidence: likely, example: boom}
`
	all, err := Parse("f.yaml", []byte(rows))
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{"x.io/a/b:v1.0.0": "bug", "x.io/a/b:v1.1.0": "other", "c:v1": "other"} {
		got := NewSet(all).Best([]Line{
			{Place: Log, Evidence: finding.Evidence{Text: "boom"}},
			{Place: Spec, Evidence: finding.Evidence{Text: "image: " + image}},
		})
		if idOf(got) != want {
			t.Errorf("with %s, %s matches, want %s", image, idOf(got), want)
		}
	}
	for name, test := range map[string]struct{ before, after, want string }{
		"no image":        {"images: [a/b]", "images: []", "images: "},
		"no release":      {"fixed: [v1.1.0]", "fixed: []", "fixed: "},
		"no number":       {"fixed: [v1.1.0]", "fixed: [soon]", "invalid release"},
		"one minor twice": {"fixed: [v1.1.0]", "fixed: [v1.1.0, v1.1.2]", "two releases of v1.1"},
		"unknown since":   {"fixed: [v1.1.0]", "since: early, fixed: [v1.1.0]", "invalid release"},
		"no defect":       {"defect: {images: [a/b], fixed: [v1.1.0]}, ", "", "{version}"},
	} {
		_, err := Parse("f.yaml", []byte(strings.Replace(rows, test.before, test.after, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want a part %q", name, err, test.want)
		}
	}
}

//go:build linux

package ci

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
)

// The workflow uses the action as it is: only inputs and outputs that exist, and all that are required.
func TestGitHubExample(t *testing.T) {
	t.Parallel()
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Uses, ID, Run string
				With, Env     map[string]string
			}
		}
	}
	readYAML(t, "docs/examples/github-actions.yml", &workflow)
	a, steps := readAction(t), workflow.Jobs["experiment"].Steps
	const ours = "gpu-fault/kubectl-gpu-fault/.github/actions/experiment@"
	if len(steps) == 0 || !strings.HasPrefix(steps[0].Uses, ours) || steps[0].With["version"] == "" {
		t.Fatalf("%+v", steps)
	}
	for name := range steps[0].With {
		if _, known := a.Inputs[name]; !known {
			t.Errorf("the action has no input %s", name)
		}
	}
	for _, step := range steps[1:] {
		for _, value := range step.Env {
			name := strings.TrimSuffix(strings.TrimPrefix(value, "${{ steps.experiment.outputs."), " }}")
			if _, known := a.Outputs[name]; !known {
				t.Errorf("the action has no output %s", name)
			}
		}
	}
}

// The GitLab job installs only what the checksum is right for, runs the experiment, and keeps the reports that it
// wrote, also when the experiment fails.
func TestGitLabExample(t *testing.T) {
	t.Parallel()
	var file map[string]struct {
		Variables map[string]string
		Before    []string `json:"before_script"`
		Script    []string
		Artifacts struct {
			When    string
			Paths   []string
			Reports struct{ JUnit string }
		}
	}
	readYAML(t, "docs/examples/gitlab-ci.yml", &file)
	job, found := file["gpu-experiment"]
	if !found || len(job.Before) == 0 || len(job.Script) == 0 || job.Artifacts.When != "always" {
		t.Fatalf("%+v", file)
	}
	lines := strings.Join(append(job.Before, job.Script...), "\n")
	for _, test := range []struct {
		name    string
		code    string
		prepare func(*release)
		want    int
	}{
		{"passed", "0", func(*release) {}, 0},
		{"failed", "2", func(*release) {}, 2},
		{"another archive", "0", func(r *release) { r.publish(archive, pack(t, stub+"# changed\n")) }, 1},
	} {
		r := newRelease(t, stub)
		r.write(filepath.Join(r.stub, "code"), test.code)
		test.prepare(r)
		var environ []string
		for name, value := range job.Variables {
			environ = append(environ, name+"="+value)
		}
		environ = append(environ, "GPU_FAULT_VERSION="+version, "GPU_FAULT_RELEASES=file://"+r.dir)
		said, code := r.run(r.command(environ, "bash", "-eo", "pipefail", "-c", lines))
		if code != test.want {
			t.Errorf("%s: exit %d: %s", test.name, code, said)
		}
		for _, report := range append(job.Artifacts.Paths, job.Artifacts.Reports.JUnit) {
			if has := r.read(filepath.Join(r.work, report)) != ""; has != (code != 1) {
				t.Errorf("%s: report %s: %v", test.name, report, has)
			}
		}
		if (r.args() == nil) != (test.want == 1) {
			t.Errorf("%s: the plugin got %q", test.name, r.args())
		}
	}
}

// objects returns the objects of the canary's file.
func objects(t *testing.T) (all []unstructured.Unstructured) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs/examples/canary.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// rights returns the namespace, the roles and the bindings of a list, by kind, namespace and name, without labels.
func rights(all []unstructured.Unstructured) map[string]any {
	found := map[string]any{}
	for _, o := range all {
		if o.GroupVersionKind().Group != "rbac.authorization.k8s.io" {
			continue
		}
		content := o.DeepCopy().Object
		delete(content, "metadata")
		found[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = content
	}
	return found
}

// The canary has exactly the rights that `rbac print` prints for its experiment, under names that no other binding has:
// applying the file must not take the roles from those who have them.
func TestCanaryHasThePrintedRoles(t *testing.T) {
	t.Parallel()
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	cmd := plugin.NewCommand(streams)
	cmd.SetArgs(strings.Fields("rbac print --for xid,watch --serviceaccount gpu-fault-canary:canary -o json"))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	renamed := strings.NewReplacer(`"name": "gpu-fault-xid"`, `"name": "gpu-fault-canary-xid"`,
		`"name": "gpu-fault-watch"`, `"name": "gpu-fault-canary-watch"`).Replace(out.String())
	var list unstructured.UnstructuredList
	if err := list.UnmarshalJSON([]byte(renamed)); err != nil {
		t.Fatal(err)
	}
	printed, written := rights(list.Items), rights(objects(t))
	if len(printed) < 8 {
		t.Fatalf("only %d objects are printed", len(printed))
	}
	for name, want := range printed {
		if !reflect.DeepEqual(written[name], want) {
			t.Errorf("%s: the file has\n%v\nrbac print has\n%v", name, written[name], want)
		}
		delete(written, name)
	}
	for name := range written {
		t.Errorf("%s is not printed", name)
	}
	for _, o := range list.Items {
		if o.GetKind() != "Namespace" {
			continue
		}
		for _, mine := range objects(t) {
			if mine.GetKind() == "Namespace" && mine.GetName() == o.GetName() &&
				!reflect.DeepEqual(mine.GetLabels(), o.GetLabels()) {
				t.Errorf("namespace %s has the labels %v, printed are %v", o.GetName(), mine.GetLabels(), o.GetLabels())
			}
		}
	}
}

// The canary never runs twice at once, ends in time, is not repeated, and runs an experiment that is valid.
func TestCanary(t *testing.T) {
	t.Parallel()
	parsed := 0
	for _, o := range objects(t) {
		switch o.GetKind() {
		case "ConfigMap":
			text, _, _ := unstructured.NestedString(o.Object, "data", "experiment.yaml")
			e, err := experiment.Parse("experiment.yaml", []byte(text))
			if err != nil || e.Target.Selector == "" {
				t.Errorf("%v, %+v", err, e)
			}
			parsed++
		case "CronJob":
			for path, want := range map[string]any{
				"spec.concurrencyPolicy": "Forbid", "spec.jobTemplate.spec.backoffLimit": int64(0),
				"spec.jobTemplate.spec.activeDeadlineSeconds":       int64(600),
				"spec.jobTemplate.spec.template.spec.restartPolicy": "Never",
			} {
				got, _, _ := unstructured.NestedFieldNoCopy(o.Object, strings.Split(path, ".")...)
				if n, isFloat := got.(float64); isFloat {
					got = int64(n)
				}
				if got != want {
					t.Errorf("%s is %v, want %v", path, got, want)
				}
			}
			parsed++
		}
	}
	if parsed != 2 {
		t.Errorf("%d of 2 objects were found", parsed)
	}
}

package scenario

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// SampleFacts returns the facts of a cluster with two nodes with two GPUs each, like test/cluster, for trying scenarios
// without a cluster.
func SampleFacts() Facts {
	f := Facts{Kubernetes: "v1.36.3", Simulated: true, Lab: true, Registry: "localhost:5000"}
	for _, name := range []string{"node-a", "node-b"} {
		f.Nodes = append(f.Nodes,
			NodeFacts{Name: name, Hostname: name, Architecture: "amd64", GPUs: 2, FreeGPUs: 2, Product: "NVIDIA-H200",
				MemoryMiB: 143771, ControlPlane: name == "node-a", Runtime: "containerd://2.3.7"})
	}
	f.summarize()
	return f
}

// seedsToPlay is the number of seeds that Lint uses in addition to each single choice. It is high enough to cover most
// pairs of choices.
const seedsToPlay = 24

// play resolves the scenario with each choice of each parameter, and checks the results.
func (l *linter) play() {
	var givens []map[string]string
	for _, name := range slices.Sorted(maps.Keys(l.s.Params)) {
		for _, choice := range l.s.Params[name].OneOf {
			givens = append(givens, map[string]string{name: choiceName(choice)})
		}
	}
	for i := range max(len(givens), seedsToPlay) {
		var given map[string]string
		if i < len(givens) {
			given = givens[i]
		}
		l.playOnce(int64(i+1), given, SampleFacts())
		if l.s.Workload != nil {
			own := SampleFacts()
			own.Workload = &WorkloadFacts{
				Namespace: "team", Name: "server", Labels: "app=server,tier=gpu", Replicas: 2, Container: 1, GPUs: 1,
				Requests: i%2 == 0,
			}
			l.playOnce(int64(i+1), nil, own)
		}
	}
}

func (l *linter) playOnce(seed int64, given map[string]string, facts Facts) {
	r, err := l.s.Resolve(seed, given, facts)
	if err != nil {
		l.again(err)
		return
	}
	l.played(r)
}

// again adds the problems in an error, with a position in the file if they have none.
func (l *linter) again(err error) {
	for _, p := range Places(err) {
		problem := *p
		problem.File = l.file
		l.problems = append(l.problems, &problem)
	}
}

// played checks a resolved scenario.
func (l *linter) played(r *Resolved) {
	root := r.source.root
	sealed := root.find("sealed")
	solutions, wrong := len(r.Sealed.Solutions), len(r.Sealed.WrongFixes)
	variant := describe(r.Drawn)
	if solutions == 0 && len(l.s.Sealed.Solutions) > 0 {
		l.wrong(sealed.find("solutions"), "sealed.solutions", "is empty when %s", variant)
	}
	if wrong < leastVariants && len(l.s.Sealed.WrongFixes) >= leastVariants {
		l.wrong(sealed.find("wrongFixes"), "sealed.wrongFixes", "found %d when %s, but at least %d are required",
			wrong, variant,
			leastVariants)
	}
	if len(r.Sealed.Broken) == 0 && len(l.s.Sealed.Broken) > 0 {
		l.wrong(sealed.find("broken"), "sealed.broken", "is empty when %s", variant)
	}
	if len(r.Sealed.Grade.Fixed) == 0 && len(l.s.Sealed.Grade.Fixed) > 0 {
		l.wrong(sealed.find("grade", "fixed"), "sealed.grade.fixed", "is empty when %s", variant)
	}
	l.offered(root.find("public", "choices", "component"), "public.choices.component", r.Public.Choices.Component,
		r.Sealed.RootCause.Component)
	l.offered(root.find("public", "choices", "mechanism"), "public.choices.mechanism", r.Public.Choices.Mechanism,
		r.Sealed.RootCause.Mechanism)
	l.namespaces(r)
	l.collateral(r)
	l.leaks(r)
	l.modulePlayed(r)
}

// describe formats the parameters for messages.
func describe(drawn map[string]any) string {
	if v, is := drawn["variant"]; is {
		return "the variant is " + choiceName(v)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(drawn)) {
		parts = append(parts, name+" is "+shorten(choiceName(drawn[name])))
	}
	return strings.Join(parts, ", ")
}

// namespaces verifies that the scenario creates the namespaces that the candidate works in. Otherwise, end could not
// revert the candidate's changes there.
func (l *linter) namespaces(r *Resolved) {
	c := consent{own: map[string]bool{}}
	c.ownNamespaces(r.Scenario)
	for i, ns := range r.Public.Access.Namespaces {
		if !c.own[ns] {
			n := item(r.source.root.find("public", "access", "namespaces"), i)
			l.warn(n, fmt.Sprintf("public.access.namespaces[%d]", i),
				"neither setup nor inject creates namespace %q", ns)
		}
	}
}

// Inert are the kinds of objects that the candidate may create in each of the exercise's namespaces. They only take
// effect if a workload refers to them, so they are never damage.
var Inert = []string{"ConfigMap", "Secret", "PodDisruptionBudget"}

// collateral verifies that the candidate may change everything that the solutions change.
func (l *linter) collateral(r *Resolved) {
	for i, name := range r.Sealed.Grade.Collateral.Nodes {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
			l.wrong(item(r.source.root.find("sealed", "grade", "collateral", "nodes"), i),
				fmt.Sprintf("sealed.grade.collateral.nodes[%d]", i),
				"%q is not the absolute path of a file or directory, such as /etc/containerd", name)
		}
	}
	allow := r.Sealed.Grade.Collateral.Allow
	for i, a := range allow {
		if field := tooWide(a); field != "" {
			l.wrong(item(r.source.root.find("sealed", "grade", "collateral", "allow"), i),
				fmt.Sprintf("sealed.grade.collateral.allow[%d].fields", i),
				"%s of %s %s covers the program itself: specify the fields that a solution changes, such as %s",
				field, a.Kind, a.Name, "spec.template.spec.containers[main].env[NAME]")
		}
	}
	for i, a := range r.Sealed.Solutions {
		for j, s := range a.Steps {
			field := fmt.Sprintf("sealed.solutions[%d].steps[%d]", i, j)
			n := item(item(r.source.root.find("sealed", "solutions"), i).find("steps"), j)
			for _, change := range changes(s) {
				if change.ref.APIVersion == InModule { // the resource is not in the cluster
					continue
				}
				if change.what == "creating" && slices.Contains(Inert, change.ref.Kind) &&
					slices.Contains(r.Public.Access.Namespaces, change.ref.Namespace) {
					continue
				}
				if !slices.ContainsFunc(allow, func(a Allowed) bool { return a.covers(change) }) {
					l.wrong(n, field,
						"%s %s/%s in namespace %q counts as damage: add it to sealed.grade.collateral.allow",
						change.what, change.ref.Kind, change.ref.Name, change.ref.Namespace)
				}
			}
		}
	}
}

// tooWide returns the first allowed field that covers a workload's program, or "". A user who may change this field can
// replace the workload with something that only looks like it.
func tooWide(a Allowed) string {
	if !slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"}, a.Kind) {
		return ""
	}
	if len(a.Fields) == 0 {
		return "every field"
	}
	for _, field := range a.Fields {
		if slices.Contains([]string{"spec", "spec.template", "spec.template.spec", "spec.template.spec.containers",
			"spec.template.spec.initContainers", "spec.template.spec.volumes", "spec.jobTemplate"}, field) {
			return field
		}
	}
	return ""
}

type change struct {
	what string
	ref  Ref
}

// changes returns the changes of a step that the baseline will detect.
func changes(s Step) []change {
	var all []change
	switch {
	case s.Patch != nil:
		all = append(all, change{"changing", s.Patch.Object})
	case s.Delete != nil:
		all = append(all, change{"deleting", *s.Delete})
	case s.Create != nil:
		for _, o := range s.Create.Objects {
			all = append(all, change{"creating", refOf(o)})
		}
	}
	for _, o := range s.Replace {
		all = append(all, change{"changing", refOf(o)})
	}
	return all
}

func (a Allowed) covers(c change) bool {
	right := func(want, got string) bool { // uses the same matching as package baseline
		matches, err := path.Match(want, got)
		return want == "" || err == nil && matches
	}
	if !right(a.Kind, c.ref.Kind) || !right(a.Namespace, c.ref.Namespace) || !right(a.Name, c.ref.Name) {
		return false
	}
	switch c.what {
	case "deleting":
		return a.Deleted
	case "creating":
		return a.Created || !a.Deleted // deleted and then recreated: changed
	}
	return true
}

package cudashim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// InjectedError reports that another run has already injected the shim into the workload.
type InjectedError struct{ Ref, Run string }

func (e *InjectedError) Error() string {
	return fmt.Sprintf("%s already has the fault of run %s: change the fault with `kubectl gpu-fault cuda arm`, or revert it first with "+
		"`kubectl gpu-fault revert %s`", e.Ref, e.Run, e.Run)
}

// additions are the parts that a run adds to pod templates.
type additions struct {
	run       string
	configMap string
	files     []any  // items of the ConfigMap's volume
	preload   string // path of the shim in the value of the variable
	variable  string
	preloads  map[string]string // values of the variable that images set, by image
	expr      map[string]any    // requirement of the node pin; nil if there is none
	hard      bool
	noLabels  bool // the API server drops labels from templates of this kind
}

// newAdditions returns the parts that the run adds to each template.
func (in *Injection) newAdditions(run string) additions {
	a := additions{
		run: run, configMap: Name(run), variable: in.variable(), preloads: in.Preloads, preload: in.preload(),
	}
	for _, arch := range in.archs() {
		for _, directory := range directories(arch, in.mixed()) {
			a.files = append(a.files, map[string]any{"key": libraryKey(arch), "path": directory + in.library()})
		}
	}
	a.files = append(a.files, map[string]any{"key": StateKey, "path": StateKey})
	return a
}

func (in *Injection) variable() string {
	if in.Variable == "" {
		return PreloadVar
	}
	return in.Variable
}

func (in *Injection) library() string {
	if in.Library == "" {
		return LibraryName
	}
	return in.Library
}

func (in *Injection) archs() []string { return slices.Sorted(maps.Keys(in.Libraries)) }
func (in *Injection) mixed() bool     { return len(in.Libraries) > 1 }

// preload returns the path of the shim, as the value of LD_PRELOAD or LD_AUDIT. ld.so replaces $PLATFORM with its own
// name for the processor.
func (in *Injection) preload() string {
	if in.mixed() {
		return LibraryDir + "/$PLATFORM/" + in.library()
	}
	return LibraryDir + "/" + in.library()
}

// directories returns the library directories for an architecture: the values to which ld.so expands $PLATFORM. On some
// Intel processors, glibc 2.26 to 2.36 expands it to haswell or xeon_phi.
func directories(arch string, mixed bool) []string {
	switch {
	case !mixed:
		return []string{""}
	case arch == "amd64":
		return []string{"x86_64/", "haswell/", "xeon_phi/"}
	case arch == "arm64":
		return []string{"aarch64/"}
	}
	return []string{arch + "/"}
}

func libraryKey(arch string) string { return "libgpufault-" + arch + ".so" }

// mode is the file mode. The files are executable, because the library can be run to print its state.
const mode = 0o555

// into applies the additions to the chosen templates of an object. If it returns an error, the object must be
// discarded.
func (a additions) into(object map[string]any, ref string, chosen []Chosen) ([]kubeedit.Edit, error) {
	var edits []kubeedit.Edit
	for _, c := range chosen {
		more, err := a.template(object, ref, c)
		if err != nil {
			return nil, err
		}
		edits = append(edits, more...)
	}
	return edits, nil
}

func (a additions) template(object map[string]any, ref string, c Chosen) (edits []kubeedit.Edit, err error) {
	t := c.Template
	set := func(at kubeedit.Path, value any) {
		if err == nil {
			var e kubeedit.Edit
			if e, err = kubeedit.Put(object, at, value); err == nil {
				edits = append(edits, e)
			}
		}
	}
	for _, volume := range []string{volumeLib, volumeRun} {
		if _, taken := kubeedit.Get(
			object, t.spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", volume)),
		); taken {
			return nil,
				fmt.Errorf("%s: template %q has a volume %q that does not belong to a known run: remove the volume", ref,
					t.label(), volume)
		}
	}
	if t.meta != nil && !a.noLabels {
		set(t.meta.Then(kubeedit.Fields("labels", ledger.LabelRun)...), a.run)
	}
	set(t.spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", volumeLib)), map[string]any{
		"name":      volumeLib,
		"configMap": map[string]any{"name": a.configMap, "optional": true, "defaultMode": mode, "items": a.files},
	})
	set(t.spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", volumeRun)), map[string]any{
		"name": volumeRun, "emptyDir": map[string]any{"sizeLimit": "1Mi"},
	})
	for _, container := range c.Containers {
		mounts := container.path.Then(kubeedit.Field("volumeMounts"))
		for _, dir := range []string{LibraryDir, RunDir} {
			if _, taken := kubeedit.Get(object, mounts.Then(kubeedit.Element("mountPath", dir))); taken {
				return nil,
					fmt.Errorf("%s: container %q already mounts a volume at %s", ref, container.Name, dir)
			}
		}
		at, value, problem := a.preloadOf(object, t, container)
		if problem != nil {
			return nil, fmt.Errorf("%s: %w", ref, problem)
		}
		set(mounts.Then(kubeedit.Element("mountPath", LibraryDir)),
			map[string]any{"name": volumeLib, "mountPath": LibraryDir, "readOnly": true})
		set(mounts.Then(kubeedit.Element("mountPath", RunDir)), map[string]any{"name": volumeRun, "mountPath": RunDir})
		env := container.path.Then(kubeedit.Field("env"))
		if _, taken := kubeedit.Get(object, env.Then(kubeedit.Element("name", NodeVar))); !taken {
			set(env.Then(kubeedit.Element("name", NodeVar)), map[string]any{
				"name": NodeVar, "valueFrom": map[string]any{
					"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "spec.nodeName"},
				},
			})
		}
		set(at, value)
	}
	if err == nil && a.expr != nil {
		var more []kubeedit.Edit
		more, err = a.pin(object, t)
		edits = append(edits, more...)
	}
	return edits, err
}

// preloadOf returns the path of a container's preload variable in the object, and the variable's new value: first the
// shim, because it must see every call, then the user's libraries.
func (a additions) preloadOf(object map[string]any, t Template, c Container) (kubeedit.Path, any, error) {
	at := c.path.Then(kubeedit.Field("env"), kubeedit.Element("name", a.variable))
	users := ""
	switch variable := kubeedit.Map(object, at); {
	case variable["valueFrom"] != nil:
		return nil, nil,
			fmt.Errorf("container %q reads %s from another object (%s), but the shim must come first: set the value in the template",
				c.Name, a.variable, at.Then(kubeedit.Field("valueFrom")))
	case variable != nil:
		users, _ = variable["value"].(string)
		return at.Then(kubeedit.Field("value")), chain(a.preload, users), nil
	case t.env != nil:
		inherited := kubeedit.Map(object, t.env.Then(kubeedit.Element("name", a.variable)))
		if inherited["valueFrom"] != nil {
			return nil, nil, fmt.Errorf(
				"template %q reads %s from another object, but the shim must come first: set the value in the template", t.label(),
				a.variable,
			)
		}
		users, _ = inherited["value"].(string)
	}
	if users == "" && a.variable == PreloadVar {
		users = a.preloads[c.Image]
	}
	return at, map[string]any{"name": a.variable, "value": chain(a.preload, users)}, nil
}

func chain(ours, users string) string {
	if strings.Trim(users, ": ") == "" {
		return ours
	}
	return ours + ":" + users
}

// unchain removes the shim from the value of a variable. found reports whether the value contained it.
func unchain(value, ours string) (rest string, found bool) {
	var kept []string
	for part := range strings.SplitSeq(value, ":") {
		if part == ours {
			found = true
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, ":"), found
}

package scenario

import (
	"encoding/json"
	"fmt"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kjson "sigs.k8s.io/json"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// InModule is the apiVersion that steps of attempts use for resources that exist only in the module. Their kind
// is the resource type.
const InModule = "terraform"

// Module returns the Terraform module of the lab, or nil if the scenario has none.
func (s *Scenario) Module() (*terraform.Source, error) {
	if s.Terraform == nil {
		return nil, nil
	}
	source := &terraform.Source{Variables: s.Terraform.Variables, About: s.Public.Terraform}
	source.Resources = s.Terraform.Resources
	for _, ref := range s.Terraform.Manages {
		object := s.created(ref)
		if object == nil {
			return nil, fmt.Errorf("terraform.manages: neither setup nor inject creates %s %s in namespace %q",
				ref.Kind, ref.Name, ref.Namespace)
		}
		if !slices.Contains(s.Public.Access.Namespaces, ref.Namespace) {
			return nil, fmt.Errorf(
				"terraform.manages: the candidate is not allowed to change %s %s in namespace %q", ref.Kind,
				ref.Name, ref.Namespace,
			)
		}
		source.Objects = append(source.Objects, object)
	}
	return source, nil
}

// created returns the manifest of an object that the lab creates, or nil if it creates none.
func (s *Scenario) created(ref Ref) Object {
	for _, step := range slices.Concat(s.Setup, s.Inject) {
		if step.Create == nil {
			continue
		}
		for _, object := range step.Create.Objects {
			if refOf(object) == ref {
				return object
			}
		}
	}
	return nil
}

// ModuleAfter returns the module after an attempt.
func (s *Scenario) ModuleAfter(a Attempt) (*terraform.Source, error) {
	source, err := s.Module()
	if err != nil {
		return nil, err
	}
	if source == nil {
		return nil, fmt.Errorf("attempt %q changes the Terraform module, but the scenario has no module", a.Name)
	}
	m := inModule{objects: slices.Clone(source.Objects)}
	for _, resource := range source.Types() {
		for name, body := range source.Resources[resource] {
			m.objects = append(m.objects,
				Object{
					"apiVersion": InModule, "kind": resource, "metadata": map[string]any{"name": name}, "body": body,
				})
		}
	}
	for i, step := range a.Steps {
		if err := m.step(step); err != nil {
			return nil, fmt.Errorf("attempt %q, step %d: %w", a.Name, i+1, err)
		}
	}
	source.Objects, source.Resources = nil, nil
	for _, object := range m.objects {
		ref := refOf(object)
		if ref.APIVersion != InModule {
			source.Objects = append(source.Objects, object)
			continue
		}
		body, _ := object["body"].(map[string]any)
		source.Add(ref.Kind, ref.Name, body)
	}
	return source, nil
}

// inModule contains a module's objects, and its other resources in the form of objects.
type inModule struct{ objects []Object }

func (m *inModule) step(step Step) error {
	switch {
	case step.Patch != nil:
		i := m.find(step.Patch.Object)
		if i < 0 {
			return fmt.Errorf("the module does not contain %s %s", step.Patch.Object.Kind, step.Patch.Object.Name)
		}
		patched, err := patched(m.objects[i], *step.Patch)
		if err != nil {
			return fmt.Errorf("patch %s %s: %w", step.Patch.Object.Kind, step.Patch.Object.Name, err)
		}
		m.objects[i] = patched
	case step.Delete != nil:
		i := m.find(*step.Delete)
		if i < 0 {
			return fmt.Errorf("the module does not contain %s %s", step.Delete.Kind, step.Delete.Name)
		}
		m.objects = slices.Delete(m.objects, i, i+1)
	case step.Create != nil:
		m.objects = append(m.objects, step.Create.Objects...)
	default:
		return fmt.Errorf("unsupported step for a module: must be patch, create or delete")
	}
	return nil
}

func (m *inModule) find(ref Ref) int {
	return slices.IndexFunc(m.objects, func(object Object) bool { return refOf(object) == ref })
}

// patched returns an object after a patch. For a resource that is not an object, the patch applies to its body.
func patched(object Object, patch Patch) (Object, error) {
	merge := patch.Merge
	if patch.Object.APIVersion == InModule && merge != nil {
		merge = map[string]any{"body": merge}
	}
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	after, err := applied(before, merge, patch.JSON)
	if err != nil {
		return nil, err
	}
	var out Object
	return out, kjson.UnmarshalCaseSensitivePreserveInts(after, &out)
}

func applied(before []byte, merge map[string]any, operations []any) ([]byte, error) {
	if merge != nil {
		text, err := json.Marshal(merge)
		if err != nil {
			return nil, err
		}
		return jsonpatch.MergePatch(before, text)
	}
	text, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	return patch.Apply(before)
}

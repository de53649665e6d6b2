package terraform

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Source describes a module to write.
type Source struct {
	Module
	// Variables contains the values of the variables, by name. The module refers to a variable wherever the variable's
	// value occurs as a word.
	Variables map[string]string
	// About describes the purpose of the module; it is the beginning of its README.
	About string
}

// README is the name of the file with instructions.
const README = "README.md"

// Write returns the files of a module. Reading the files returns the same module. If a value would be lost, Write
// returns an error that names the object.
func (s Source) Write() (Files, error) {
	w := &writer{
		variables: s.Variables, main: hclwrite.NewEmptyFile(), imports: hclwrite.NewEmptyFile(),
		taken: map[string]bool{}, roles: map[string]hcl.Traversal{},
	}
	for name := range s.Variables {
		if !hclsyntax.ValidIdentifier(name) {
			return nil, fmt.Errorf("invalid variable name %q", name)
		}
	}
	for _, object := range s.Objects {
		if err := w.object(object); err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(object), err)
		}
	}
	for _, resource := range s.Types() {
		for _, name := range slices.Sorted(maps.Keys(s.Resources[resource])) {
			if err := w.resource(resource, name, s.Resources[resource][name]); err != nil {
				return nil, fmt.Errorf("%s.%s: %w", resource, name, err)
			}
		}
	}
	files := Files{
		"versions.tf": s.versions(), "variables.tf": s.declared(), "main.tf": hclwrite.Format(w.main.Bytes()),
		README: []byte(s.readme()),
	}
	if len(s.Objects) > 0 {
		files["imports.tf"] = hclwrite.Format(w.imports.Bytes())
	}
	return files, s.readsBack(files)
}

// readsBack verifies that reading the files returns the same module.
func (s Source) readsBack(files Files) error {
	back, err := Read(files)
	if err != nil {
		return fmt.Errorf("generated module is invalid: %w", err)
	}
	for i, object := range s.Objects {
		if i >= len(back.Objects) || !equal(object, back.Objects[i]) {
			return fmt.Errorf("%s contains a value that the Terraform provider does not support", nameOf(object))
		}
	}
	for resource, all := range s.Resources {
		for name, body := range all {
			if !equal(body, back.Resources[resource][name]) {
				return fmt.Errorf("%s.%s contains a value that cannot be written", resource, name)
			}
		}
	}
	return nil
}

// equal compares values as Kubernetes does: numbers are equal regardless of their Go types.
func equal(a, b any) bool { return reflect.DeepEqual(canonical(a), canonical(b)) }

func canonical(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for key, inner := range value {
			out[key] = canonical(inner)
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, inner := range value {
			out[i] = canonical(inner)
		}
		return out
	case int:
		return int64(value)
	case float64:
		if value == float64(int64(value)) {
			return int64(value)
		}
	}
	return value
}

type writer struct {
	variables     map[string]string
	main, imports *hclwrite.File
	taken         map[string]bool
	roles         map[string]hcl.Traversal // roles in the module, by name, that bindings refer to
}

// object writes a resource of the kubernetes provider, and an import block that makes Terraform adopt the existing
// object.
func (w *writer) object(object Object) error {
	resource := typeOf(object)
	k := kinds[resource]
	body, err := toBody(k, object)
	if err != nil {
		return err
	}
	namespace, name := textAt(object, "metadata", "namespace"), textAt(object, "metadata", "name")
	label := w.label(resource, namespace, name)
	address := hcl.Traversal{hcl.TraverseRoot{Name: resource}, hcl.TraverseAttr{Name: label}}
	if k.kind == "Role" {
		w.roles[namespace+"/"+name] = slices.Concat(address, hcl.Traversal{
			hcl.TraverseAttr{Name: "metadata"}, hcl.TraverseIndex{Key: cty.Zero}, hcl.TraverseAttr{Name: "name"},
		})
	}
	id := namespace + "/" + name
	if resource == manifestType {
		id = fmt.Sprintf("apiVersion=%s,kind=%s,namespace=%s,name=%s", object["apiVersion"], object["kind"], namespace,
			name)
	}
	adopt := w.imports.Body().AppendNewBlock("import", nil).Body()
	adopt.SetAttributeTraversal("to", address)
	adopt.SetAttributeRaw("id", w.text(id))
	w.imports.Body().AppendNewline()
	if role, is := w.roleOf(object); is {
		body["role_ref"].([]any)[0].(map[string]any)["name"] = role
	}
	return w.resource(resource, label, body)
}

// roleOf returns a binding's reference to a role in the module.
func (w *writer) roleOf(object Object) (hcl.Traversal, bool) {
	if object["kind"] != "RoleBinding" || textAt(object, "roleRef", "kind") != "Role" {
		return nil, false
	}
	role, is := w.roles[textAt(object, "metadata", "namespace")+"/"+textAt(object, "roleRef", "name")]
	return role, is
}

// label returns a resource's name in the module.
func (w *writer) label(resource, namespace, name string) string {
	word := strings.Map(func(r rune) rune {
		if r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	if !hclsyntax.ValidIdentifier(word) {
		word = "the_" + word
	}
	for w.taken[resource+"."+word] {
		word += "_" + cmp.Or(strings.ReplaceAll(namespace, "-", "_"), "more")
	}
	w.taken[resource+"."+word] = true
	return word
}

func (w *writer) resource(resource, name string, body Body) error {
	k, known := kinds[resource]
	switch {
	case !known:
		return fmt.Errorf("unsupported resource type; supported values: %s",
			strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case !hclsyntax.ValidIdentifier(name):
		return fmt.Errorf("invalid Terraform name %q", name)
	}
	if w.main.Body().Blocks() != nil {
		w.main.Body().AppendNewline()
	}
	return w.body(w.main.Body().AppendNewBlock("resource", []string{resource, name}).Body(), k.fields, body)
}

// body writes attributes and then blocks, in the order of the schema.
func (w *writer) body(to *hclwrite.Body, fields []field, body Body) error {
	for name := range body {
		if _, known := named(fields, name); !known {
			return fmt.Errorf("%s: argument not supported by the provider", name)
		}
	}
	for _, f := range fields {
		value, has := body[f.name]
		if !has || f.isBlock() {
			continue
		}
		tokens, err := w.value(value)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		to.SetAttributeRaw(f.name, tokens)
	}
	for _, f := range fields {
		all, is := body[f.name].([]any)
		if body[f.name] != nil && f.isBlock() && !is {
			return fmt.Errorf("%s: not a list of blocks", f.name)
		}
		for _, one := range all {
			inner, is := one.(map[string]any)
			if !f.isBlock() {
				break
			} else if !is {
				return fmt.Errorf("%s: not a block", f.name)
			}
			if len(to.Attributes())+len(to.Blocks()) > 0 {
				to.AppendNewline()
			}
			if err := w.body(to.AppendNewBlock(f.name, nil).Body(), f.fields, inner); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

func (w *writer) value(value any) (hclwrite.Tokens, error) {
	switch value := value.(type) {
	case string:
		return w.text(value), nil
	case hcl.Traversal:
		return hclwrite.TokensForTraversal(value), nil
	case bool:
		return hclwrite.TokensForValue(cty.BoolVal(value)), nil
	case int:
		return hclwrite.TokensForValue(cty.NumberIntVal(int64(value))), nil
	case int64:
		return hclwrite.TokensForValue(cty.NumberIntVal(value)), nil
	case float64:
		return hclwrite.TokensForValue(cty.NumberFloatVal(value)), nil
	case []any:
		var all []hclwrite.Tokens
		for i, one := range value {
			tokens, err := w.value(one)
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			all = append(all, tokens)
		}
		return hclwrite.TokensForTuple(all), nil
	case map[string]any:
		var all []hclwrite.ObjectAttrTokens
		for _, key := range slices.Sorted(maps.Keys(value)) {
			tokens, err := w.value(value[key])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			name := hclwrite.TokensForValue(cty.StringVal(key))
			if hclsyntax.ValidIdentifier(key) {
				name = hclwrite.TokensForIdentifier(key)
			}
			all = append(all, hclwrite.ObjectAttrTokens{Name: name, Value: tokens})
		}
		return hclwrite.TokensForObject(all), nil
	}
	return nil, fmt.Errorf("unsupported type %T", value)
}

// text returns the string with each word that equals a variable's value replaced by a reference to the variable.
func (w *writer) text(text string) hclwrite.Tokens {
	for _, name := range w.names() {
		if w.variables[name] == text {
			return variable(name)
		}
	}
	tokens := hclwrite.Tokens{{Type: hclsyntax.TokenOQuote, Bytes: []byte(`"`)}}
	for text != "" {
		at, name := w.next(text)
		if name == "" {
			at = len(text)
		}
		if at > 0 {
			quoted := hclwrite.TokensForValue(cty.StringVal(text[:at]))
			tokens = append(tokens, quoted[1:len(quoted)-1]...)
		}
		text = text[at:]
		if name != "" {
			tokens = append(tokens, &hclwrite.Token{Type: hclsyntax.TokenTemplateInterp, Bytes: []byte("${")})
			tokens = append(tokens, variable(name)...)
			tokens = append(tokens, &hclwrite.Token{Type: hclsyntax.TokenTemplateSeqEnd, Bytes: []byte("}")})
			text = text[len(w.variables[name]):]
		}
	}
	return append(tokens, &hclwrite.Token{Type: hclsyntax.TokenCQuote, Bytes: []byte(`"`)})
}

// names returns the names of the variables, sorted by the length of their values, longest first, so that a short value
// does not match a part of a longer one.
func (w *writer) names() []string {
	return slices.SortedFunc(maps.Keys(w.variables), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(w.variables[b]), len(w.variables[a])), cmp.Compare(a, b))
	})
}

// next returns the first position where a variable's value occurs as a word.
func (w *writer) next(text string) (at int, found string) {
	at = len(text)
	for _, name := range w.names() {
		value := w.variables[name]
		for from := 0; value != ""; {
			i := strings.Index(text[from:], value)
			if i < 0 || from+i >= at {
				break
			}
			i += from
			if !within(text, i-1) && !within(text, i+len(value)) {
				at, found = i, name
				break
			}
			from = i + 1
		}
	}
	return at, found
}

// within reports whether the character at the position is a letter or digit.
func within(text string, at int) bool {
	if at < 0 || at >= len(text) {
		return false
	}
	c := text[at]
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func variable(name string) hclwrite.Tokens {
	return hclwrite.TokensForTraversal(hcl.Traversal{hcl.TraverseRoot{Name: "var"}, hcl.TraverseAttr{Name: name}})
}

// declared returns variables.tf.
func (s Source) declared() []byte {
	file := hclwrite.NewEmptyFile()
	for i, name := range slices.Sorted(maps.Keys(s.Variables)) {
		if i > 0 {
			file.Body().AppendNewline()
		}
		body := file.Body().AppendNewBlock("variable", []string{name}).Body()
		body.SetAttributeRaw("type", hclwrite.TokensForIdentifier("string"))
		body.SetAttributeValue("default", cty.StringVal(s.Variables[name]))
	}
	return hclwrite.Format(file.Bytes())
}

// versions returns the contents of versions.tf. Import blocks whose id refers to variables require Terraform 1.6.
func (s Source) versions() []byte {
	file := hclwrite.NewEmptyFile()
	body := file.Body().AppendNewBlock("terraform", nil).Body()
	body.SetAttributeValue("required_version", cty.StringVal(">= 1.6"))
	body.AppendNewline()
	providers := body.AppendNewBlock("required_providers", nil).Body()
	if len(s.Resources) > 0 {
		providers.SetAttributeValue("google", requirement("hashicorp/google", ">= 6.0, < 8.0"))
	}
	if len(s.Objects) > 0 {
		providers.SetAttributeValue("kubernetes", requirement("hashicorp/kubernetes", ">= 2.30, < 4.0"))
	}
	return hclwrite.Format(file.Bytes())
}

func requirement(source, version string) cty.Value {
	return cty.ObjectVal(map[string]cty.Value{"source": cty.StringVal(source), "version": cty.StringVal(version)})
}

func (s Source) readme() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Module\n\n%s\n", strings.TrimSpace(s.About))
	b.WriteString(`
The module matches the current state of the cluster: imports.tf makes Terraform adopt the existing objects, and the first plan has no
changes to them. You may run Terraform, but do not have to: for provider kubernetes, set KUBE_CONFIG_PATH to your kubeconfig.

The module that you submit is parsed, not run: variables with their defaults and *.tfvars, locals, for_each, count, dynamic blocks and the
usual functions are supported. Do not use modules, data sources or provisioners. The module's Kubernetes objects are applied with your permissions, like
` + "`terraform apply`" + `, and objects that you remove from the module are deleted.
`)
	if len(s.Resources) > 0 {
		b.WriteString(
			"\nResources of the google provider are graded by their contents. They are never applied, and the " +
				"project does not have to exist.\n",
		)
	}
	return b.String()
}

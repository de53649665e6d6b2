package terraform

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Read evaluates a module. Its error is of type Problems, and describes how to fix each problem.
func Read(files Files) (*Module, error) {
	r := &reader{
		files: map[string]*hclsyntax.Body{}, variables: map[string]*hclsyntax.Block{},
		given:  map[string]*hclsyntax.Attribute{},
		locals: map[string]*hclsyntax.Attribute{}, resources: map[string]*hclsyntax.Block{},
		values: map[string]cty.Value{}, state: map[string]progress{},
	}
	r.functions = functions(func(bytes int) { r.made += bytes })
	r.parse(files)
	if len(r.all) > 0 {
		return nil, r.err()
	}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		r.declare(name, r.files[name])
	}
	if len(r.all) > 0 {
		return nil, r.err()
	}
	for _, name := range slices.Sorted(maps.Keys(r.variables)) {
		r.need("var."+name, r.variables[name].DefRange())
	}
	for _, name := range slices.Sorted(maps.Keys(r.locals)) {
		r.need("local."+name, r.locals[name].SrcRange)
	}
	for _, address := range slices.Sorted(maps.Keys(r.resources)) {
		r.need(address, r.resources[address].DefRange())
	}
	r.once()
	if len(r.all) > 0 {
		return nil, r.err()
	}
	sorting.StableFunc(r.objects, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.at.Filename, b.at.Filename), cmp.Compare(a.at.Start.Byte, b.at.Start.Byte))
	})
	for _, one := range r.objects {
		r.module.Objects = append(r.module.Objects, one.object)
	}
	return &r.module, nil
}

// placed is an object together with the position of its resource.
type placed struct {
	object Object
	at     hcl.Range
}

// reader evaluates a module. Each value is computed once, when needed.
type reader struct {
	problems
	files     map[string]*hclsyntax.Body // .tf files
	variables map[string]*hclsyntax.Block
	given     map[string]*hclsyntax.Attribute // values of variables, from variable definition files
	locals    map[string]*hclsyntax.Attribute
	resources map[string]*hclsyntax.Block // by address: TYPE.NAME

	values  map[string]cty.Value // by address: var.tenant, local.ports, kubernetes_role_v1.jobs
	state   map[string]progress
	module  Module
	objects []placed
	count   int // number of resources

	functions map[string]function.Function
	steps     int // total iterations of for expressions
	made      int // total bytes of strings that for expressions and functions process
}

type progress int

const (
	unknown progress = iota
	underway
	known
)

// parse parses the files.
func (r *reader) parse(files Files) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		place := hcl.Range{Filename: name}
		base := strings.TrimSuffix(name, ".tf")
		switch {
		case !ours(name):
			continue
		case strings.HasSuffix(name, ".json"), strings.Contains(name, ".tofu"):
			r.at(place, "unsupported file format: must be a .tf file")
			continue
		case base == "override" || strings.HasSuffix(base, "_override"):
			r.at(place, "override files are not supported: change the original files")
			continue
		case len(files[name]) > maxText:
			r.at(place, "larger than %d KiB", maxText>>10)
			continue
		}
		if !r.bounded(name, files[name]) {
			continue
		}
		file, found := hclsyntax.ParseConfig(files[name], name, hcl.InitialPos)
		r.diagnosed(found)
		if found.HasErrors() {
			continue
		}
		body, _ := file.Body.(*hclsyntax.Body)
		r.bounds(body)
		if !isValues(name) {
			r.files[name] = body
			continue
		}
		for variable, attribute := range body.Attributes {
			if before := r.given[variable]; before == nil || before.SrcRange.Filename == "terraform.tfvars" ||
				name != "terraform.tfvars" {
				r.given[variable] = attribute // load *.auto.tfvars in order, after terraform.tfvars
			}
		}
		for _, b := range body.Blocks {
			r.at(b.DefRange(), "blocks are not allowed in a .tfvars file: write NAME = VALUE")
		}
	}
}

// ignored lists blocks that do not affect the meaning of resources.
var ignored = []string{"terraform", "provider", "output", "import", "moved", "check"}

// refused lists blocks whose meaning cannot be determined without running Terraform.
var refused = map[string]string{
	"module":    "write the module's resources here",
	"data":      "providers are not run; replace the reference with the value",
	"ephemeral": "providers are not run; replace the reference with the value",
	"removed":   "resources that are not in the module are deleted; remove this block",
}

// declare records the declarations in a file.
func (r *reader) declare(file string, body *hclsyntax.Body) {
	for _, attribute := range body.Attributes {
		r.at(attribute.SrcRange, "%s is outside a block: set variables in terraform.tfvars",
			attribute.Name)
	}
	for _, b := range body.Blocks {
		switch {
		case refused[b.Type] != "":
			r.at(b.DefRange(), "%s blocks are not supported: %s", b.Type, refused[b.Type])
		case slices.Contains(ignored, b.Type):
		case b.Type == "locals":
			for name, attribute := range b.Body.Attributes {
				if before := r.locals[name]; before != nil {
					r.at(attribute.SrcRange, "local.%s is already declared in %s", name, where(before.SrcRange))
				}
				r.locals[name] = attribute
			}
		case b.Type == "variable" && len(b.Labels) == 1:
			if before := r.variables[b.Labels[0]]; before != nil {
				r.at(b.DefRange(), "variable %s is already declared in %s", b.Labels[0], where(before.DefRange()))
			}
			r.variables[b.Labels[0]] = b
		case b.Type == "resource" && len(b.Labels) == 2:
			r.resource(b)
		default:
			r.at(b.DefRange(),
				"unsupported block %s %s: must be resource \"TYPE\" \"NAME\", variable \"NAME\" or locals", b.Type,
				strings.Join(b.Labels, " "))
		}
	}
}

func (r *reader) resource(b *hclsyntax.Block) {
	address := b.Labels[0] + "." + b.Labels[1]
	if before := r.resources[address]; before != nil {
		r.at(b.DefRange(), "%s is already declared in %s", address, where(before.DefRange()))
		return
	}
	if _, is := kindOfType(b.Labels[0]); !is {
		r.at(b.DefRange(), "unsupported resource type %s%s", b.Labels[0],
			nearest(b.Labels[0], slices.Sorted(maps.Keys(kinds))))
		return
	}
	r.resources[address] = b
}

func where(place hcl.Range) string {
	return Problem{File: place.Filename, Line: place.Start.Line, Column: place.Start.Column}.place()
}

// once records a problem for each object that is managed more than once.
func (r *reader) once() {
	seen := map[string]hcl.Range{}
	for _, one := range r.objects {
		name := nameOf(one.object)
		if before, twice := seen[name]; twice {
			r.at(one.at, "%s is already managed in %s", name, where(before))
		}
		seen[name] = one.at
	}
}

// need computes a value after computing the values that it depends on.
func (r *reader) need(address string, from hcl.Range) {
	switch r.state[address] {
	case known:
		return
	case underway:
		r.at(from, "circular dependency between %s", address)
		return
	}
	r.state[address] = underway
	defer func() { r.state[address] = known }()
	kind, name, _ := strings.Cut(address, ".")
	var value cty.Value
	switch kind {
	case "var":
		value = r.variable(name)
	case "local":
		value = r.value(r.locals[name].Expr, nil)
	default:
		value = r.instances(r.resources[address])
	}
	if !r.small(value, from, address) {
		value = cty.DynamicVal
	}
	r.values[address] = value
}

// variable returns the value of a variable: from a .tfvars file, or its default.
func (r *reader) variable(name string) cty.Value {
	b := r.variables[name]
	wanted := cty.DynamicPseudoType
	var defaults *typeexpr.Defaults
	if a := b.Body.Attributes["type"]; a != nil {
		var found hcl.Diagnostics
		wanted, defaults, found = typeexpr.TypeConstraintWithDefaults(a.Expr)
		r.diagnosed(found)
		if found.HasErrors() {
			return cty.DynamicVal
		}
	}
	a := b.Body.Attributes["default"]
	if given := r.given[name]; given != nil {
		a = given
	}
	if a == nil {
		r.at(b.DefRange(), "variable %s has no value: add a default, or set %s = ... in terraform.tfvars", name,
			name)
		return cty.DynamicVal
	}
	value, found := a.Expr.Value(&hcl.EvalContext{Functions: r.functions})
	r.diagnosed(found)
	if found.HasErrors() {
		return cty.DynamicVal
	}
	if defaults != nil && !value.IsNull() {
		value = defaults.Apply(value)
	}
	value, err := convert.Convert(value, wanted)
	if err != nil {
		r.at(a.Expr.Range(), "variable %s: %v", name, err)
		return cty.DynamicVal
	}
	return value
}

// value evaluates an expression. The map more contains the values of additional names.
func (r *reader) value(e hcl.Expression, more map[string]cty.Value) cty.Value {
	value, found := e.Value(r.context(e.Variables(), more))
	r.diagnosed(found)
	if found.HasErrors() {
		return cty.DynamicVal
	}
	return value
}

// context returns the values that an expression refers to.
func (r *reader) context(refers []hcl.Traversal, more map[string]cty.Value) *hcl.EvalContext {
	named := map[string]map[string]cty.Value{}
	for _, t := range refers {
		root := t.RootName()
		if _, is := more[root]; is || len(t) < 2 {
			continue
		}
		attribute, is := t[1].(hcl.TraverseAttr)
		if !is {
			continue
		}
		address := root + "." + attribute.Name
		if !r.declares(address, t.SourceRange()) {
			continue
		}
		r.need(address, t.SourceRange())
		if named[root] == nil {
			named[root] = map[string]cty.Value{}
		}
		value, is := r.values[address]
		if !is { // the value is being computed, so the problem has been reported
			value = cty.DynamicVal
		}
		named[root][attribute.Name] = value
	}
	all := maps.Clone(more)
	if all == nil {
		all = map[string]cty.Value{}
	}
	for root, values := range named {
		all[root] = cty.ObjectVal(values)
	}
	return &hcl.EvalContext{Variables: all, Functions: r.functions}
}

// declares reports whether the module declares what an address refers to. If not, it records a problem, unless
// evaluation will report one.
func (r *reader) declares(address string, place hcl.Range) bool {
	kind, name, _ := strings.Cut(address, ".")
	is := false
	switch kind {
	case "var":
		_, is = r.variables[name]
	case "local":
		_, is = r.locals[name]
	case "data", "module", "path", "terraform", "self":
		r.at(place, "%s is not supported: replace the reference with the value", address)
	default:
		_, is = r.resources[address]
	}
	return is
}

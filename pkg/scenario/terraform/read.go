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
)

// Read evaluates a module. The error is Problems: all that is wrong in the text, with what to do about it.
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
	slices.SortStableFunc(r.objects, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.at.Filename, b.at.Filename), cmp.Compare(a.at.Start.Byte, b.at.Start.Byte))
	})
	for _, one := range r.objects {
		r.module.Objects = append(r.module.Objects, one.object)
	}
	return &r.module, nil
}

// placed is an object, with the place of its resource.
type placed struct {
	object Object
	at     hcl.Range
}

// reader is a module that is being read. Values are computed when they are needed, each once.
type reader struct {
	problems
	files     map[string]*hclsyntax.Body // .tf files
	variables map[string]*hclsyntax.Block
	given     map[string]*hclsyntax.Attribute // to variables, by files of values
	locals    map[string]*hclsyntax.Attribute
	resources map[string]*hclsyntax.Block // by their addresses: TYPE.NAME

	values  map[string]cty.Value // by address: var.tenant, local.ports, kubernetes_role_v1.jobs
	state   map[string]progress
	module  Module
	objects []placed
	count   int // of the resources

	functions map[string]function.Function
	steps     int // that for expressions went
	made      int // bytes of text by them, and by functions
}

type progress int

const (
	unknown progress = iota
	underway
	known
)

// parse reads the texts.
func (r *reader) parse(files Files) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		place := hcl.Range{Filename: name}
		base := strings.TrimSuffix(name, ".tf")
		switch {
		case !ours(name):
			continue
		case strings.HasSuffix(name, ".json"), strings.Contains(name, ".tofu"):
			r.at(place, "only files in Terraform's own language are read: write it as a .tf file")
			continue
		case base == "override" || strings.HasSuffix(base, "_override"):
			r.at(place, "files that override others are not read: change the others")
			continue
		case len(files[name]) > maxText:
			r.at(place, "it has more than %d KiB", maxText>>10)
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
				r.given[variable] = attribute // *.auto.tfvars in their order, after terraform.tfvars
			}
		}
		for _, b := range body.Blocks {
			r.at(b.DefRange(), "a file of values has no blocks: write NAME = VALUE")
		}
	}
}

// ignored are blocks that change no resource's meaning.
var ignored = []string{"terraform", "provider", "output", "import", "moved", "check"}

// refused are blocks whose meaning cannot be known by reading.
var refused = map[string]string{
	"module":    "write its resources here",
	"data":      "nothing is asked of a provider; write the value in its place",
	"ephemeral": "nothing is asked of a provider; write the value in its place",
	"removed":   "a resource that is taken out is deleted; take this block out",
}

// declare notes what a file has.
func (r *reader) declare(file string, body *hclsyntax.Body) {
	for _, attribute := range body.Attributes {
		r.at(attribute.SrcRange, "%s stands outside of a block: values of variables belong into terraform.tfvars",
			attribute.Name)
	}
	for _, b := range body.Blocks {
		switch {
		case refused[b.Type] != "":
			r.at(b.DefRange(), "%s is not read: %s", b.Type, refused[b.Type])
		case slices.Contains(ignored, b.Type):
		case b.Type == "locals":
			for name, attribute := range b.Body.Attributes {
				if before := r.locals[name]; before != nil {
					r.at(attribute.SrcRange, "local.%s is already in %s", name, where(before.SrcRange))
				}
				r.locals[name] = attribute
			}
		case b.Type == "variable" && len(b.Labels) == 1:
			if before := r.variables[b.Labels[0]]; before != nil {
				r.at(b.DefRange(), "variable %s is already in %s", b.Labels[0], where(before.DefRange()))
			}
			r.variables[b.Labels[0]] = b
		case b.Type == "resource" && len(b.Labels) == 2:
			r.resource(b)
		default:
			r.at(b.DefRange(),
				"%s %s: no such block is known: write resource \"TYPE\" \"NAME\", variable \"NAME\" or locals", b.Type,
				strings.Join(b.Labels, " "))
		}
	}
}

func (r *reader) resource(b *hclsyntax.Block) {
	address := b.Labels[0] + "." + b.Labels[1]
	if before := r.resources[address]; before != nil {
		r.at(b.DefRange(), "%s is already in %s", address, where(before.DefRange()))
		return
	}
	if _, is := kindOfType(b.Labels[0]); !is {
		r.at(b.DefRange(), "resources of type %s are not read%s", b.Labels[0],
			nearest(b.Labels[0], slices.Sorted(maps.Keys(kinds))))
		return
	}
	r.resources[address] = b
}

func where(place hcl.Range) string {
	return Problem{File: place.Filename, Line: place.Start.Line, Column: place.Start.Column}.place()
}

// once sees that no object is managed twice.
func (r *reader) once() {
	seen := map[string]hcl.Range{}
	for _, one := range r.objects {
		name := nameOf(one.object)
		if before, twice := seen[name]; twice {
			r.at(one.at, "%s is managed twice, also in %s", name, where(before))
		}
		seen[name] = one.at
	}
}

// need computes a value, after those that it needs.
func (r *reader) need(address string, from hcl.Range) {
	switch r.state[address] {
	case known:
		return
	case underway:
		r.at(from, "%s needs itself, by way of others", address)
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

// variable returns the value of a variable: that of a file of values, or its default.
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
		r.at(b.DefRange(), "variable %s has no value: give it a default, or write %s = ... into terraform.tfvars", name,
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

// value evaluates an expression. Names that are not the module's are those of more.
func (r *reader) value(e hcl.Expression, more map[string]cty.Value) cty.Value {
	value, found := e.Value(r.context(e.Variables(), more))
	r.diagnosed(found)
	if found.HasErrors() {
		return cty.DynamicVal
	}
	return value
}

// context has what an expression refers to.
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
		if !is { // it is being computed, which was told
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

// declares reports whether the module has an address. What it does not have is told where a reader may wonder;
// otherwise evaluating tells it.
func (r *reader) declares(address string, place hcl.Range) bool {
	kind, name, _ := strings.Cut(address, ".")
	is := false
	switch kind {
	case "var":
		_, is = r.variables[name]
	case "local":
		_, is = r.locals[name]
	case "data", "module", "path", "terraform", "self":
		r.at(place, "%s is not read: write the value in its place", address)
	default:
		_, is = r.resources[address]
	}
	return is
}

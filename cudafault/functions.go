package cudafault

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// hooks are the lists of functions that the shims hook. The shims are built from the same lists.
var hooks = map[Layer]string{LayerDriver: "shim/hooks.def", LayerRuntime: "shim/hooks-cudart.def"}

// function is a hooked function whose calls are counted.
type function struct {
	name    string // exported name: cuMemAlloc_v2
	base    string // name in the headers: cuMemAlloc
	classes Class
}

// hookForm matches one line of a list: HOOK(name, classes, flags, treatment).
var hookForm = regexp.MustCompile(`(?m)^HOOK\((\w+), ([A-Z|0]+), [A-Z|0]+, \w+\)$`)

// functionsByLayer parses the lists once. Functions without a class are not counted. These are the functions for symbol
// lookup, NVML, and reading the last error.
var functionsByLayer = sync.OnceValues(func() (map[Layer][]function, error) {
	all := map[Layer][]function{}
	for layer, name := range hooks {
		text, err := embedded(name)
		if err != nil {
			return nil, err
		}
		for _, m := range hookForm.FindAllStringSubmatch(string(text), -1) {
			if m[2] == "0" {
				continue
			}
			c, err := parseClass(strings.ReplaceAll(m[2], "|", ","))
			if err != nil {
				return nil, fmt.Errorf("hook %s: %w", m[1], err)
			}
			all[layer] = append(all[layer], function{m[1], baseName(m[1]), c})
		}
	}
	return all, nil
})

// hooked returns the counted functions of a layer. A test verifies that the lists can be parsed.
func hooked(layer Layer) []function {
	all, err := functionsByLayer()
	if err != nil {
		return nil
	}
	return all[layer]
}

// suffix matches the suffixes that the driver's exports have but the names in the headers lack: the version and the
// default stream.
var suffix = regexp.MustCompile(`(_v[1-9])?(_ptsz|_ptds)?$`)

func baseName(name string) string { return suffix.ReplaceAllString(name, "") }

// Functions returns the functions that a fault can make fail, without suffixes, in alphabetical order.
func Functions(layer Layer) []string {
	var names []string
	for _, f := range hooked(layer) {
		names = append(names, f.base)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// classesOf returns the classes of the functions that match a glob.
func classesOf(pattern string, layer Layer) Class {
	var c Class
	for _, f := range hooked(layer) {
		if matchGlob(pattern, f.name) || matchGlob(pattern, f.base) {
			c |= f.classes
		}
	}
	return c
}

// checkFunction returns an error if the function glob matches no function, in which case the fault would never trip.
func (f Fault) checkFunction() error {
	if f.Function == "" || classesOf(f.Function, f.layer()) != 0 {
		return nil
	}
	if f.layer() == LayerDriver && classesOf(f.Function, LayerRuntime) != 0 {
		return fmt.Errorf("--function %s is a CUDA runtime function, and not all programs use the runtime: specify a "+
			"driver function (%s), or --layer runtime",
			f.Function, strings.Join(nearFunctions("cu"+strings.TrimPrefix(f.Function, "cuda"), LayerDriver), ", "))
	}
	if near := nearFunctions(f.Function, f.layer()); len(near) > 0 {
		return fmt.Errorf("--function %s matches no supported function; did you mean %s?",
			f.Function, strings.Join(near, ", "))
	}
	return fmt.Errorf("--function %s matches no supported function; shell completion lists them",
		f.Function)
}

// nearFunctions returns at most three similar function names.
func nearFunctions(name string, layer Layer) []string {
	names := Functions(layer)
	index := map[string]int{}
	for i, n := range names {
		index[strings.ToLower(n)] = i
	}
	var near []string
	for _, i := range nearest(strings.ToLower(strings.Trim(name, "*")), index) {
		near = append(near, names[i])
	}
	return near
}

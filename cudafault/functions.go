package cudafault

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// What the shims hook, from the lists of which they are made.
var (
	//go:embed shim/hooks.def
	driverHooks string
	//go:embed shim/hooks-cudart.def
	runtimeHooks string
)

// function is one that the shim takes over and counts.
type function struct {
	name    string // as exported: cuMemAlloc_v2
	base    string // as in the headers: cuMemAlloc
	classes Class
}

// hookForm is one line of a list: HOOK(name, classes, flags, treatment).
var hookForm = regexp.MustCompile(`(?m)^HOOK\((\w+), ([A-Z|0]+), [A-Z|0]+, \w+\)$`)

// functionsByLayer reads the lists once. What has no class is not counted: looking functions up, NVML, reading the last
// error.
var functionsByLayer = sync.OnceValues(func() (map[Layer][]function, error) {
	all := map[Layer][]function{}
	for layer, text := range map[Layer]string{LayerDriver: driverHooks, LayerRuntime: runtimeHooks} {
		for _, m := range hookForm.FindAllStringSubmatch(text, -1) {
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

// hooked returns the functions that count in a layer; a test proves that the lists can be read.
func hooked(layer Layer) []function {
	all, err := functionsByLayer()
	if err != nil {
		return nil
	}
	return all[layer]
}

// suffix is what the driver's exports have and its headers do not: the version, the default stream.
var suffix = regexp.MustCompile(`(_v[1-9])?(_ptsz|_ptds)?$`)

func baseName(name string) string { return suffix.ReplaceAllString(name, "") }

// Functions lists the functions that can be made to fail, without their suffixes, in alphabetical order.
func Functions(layer Layer) []string {
	var names []string
	for _, f := range hooked(layer) {
		names = append(names, f.base)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// classesOf returns the kinds of calls that a glob matches.
func classesOf(pattern string, layer Layer) Class {
	var c Class
	for _, f := range hooked(layer) {
		if matchGlob(pattern, f.name) || matchGlob(pattern, f.base) {
			c |= f.classes
		}
	}
	return c
}

// checkFunction: the glob matches something, else nothing would ever trip.
func (f Fault) checkFunction() error {
	if f.Function == "" || classesOf(f.Function, f.layer()) != 0 {
		return nil
	}
	if f.layer() == LayerDriver && classesOf(f.Function, LayerRuntime) != 0 {
		return fmt.Errorf("--function %s is one of the CUDA runtime, which not every program calls; give the driver's (%s), or --layer runtime",
			f.Function, strings.Join(nearFunctions("cu"+strings.TrimPrefix(f.Function, "cuda"), LayerDriver), ", "))
	}
	if near := nearFunctions(f.Function, f.layer()); len(near) > 0 {
		return fmt.Errorf("--function %s: no function that can be made to fail is called so; did you mean %s?",
			f.Function, strings.Join(near, ", "))
	}
	return fmt.Errorf("--function %s: no function that can be made to fail is called so; shell completion lists them",
		f.Function)
}

// nearFunctions are at most three names close to one.
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

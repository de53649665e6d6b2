package cudafault

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	errorColumns = "code name runtime sticky classes surface"
	nvmlColumns  = "code name at"
)

// cudaError is one row of errors.tsv.
type cudaError struct {
	code          int
	name, runtime string // without CUDA_ERROR_ and cudaError
	sticky        bool
	classes       Class
	surface       Surface
}

// nvmlError is one row of nvml.tsv.
type nvmlError struct {
	code int
	name string // without NVML_ERROR_
	init bool   // returned by nvmlInit instead of by calls about a device
}

func errorOf(r row) (cudaError, error) {
	code, err := strconv.Atoi(r["code"])
	if err != nil || code < 1 || r["name"] == "" {
		return cudaError{}, fmt.Errorf("code %q, name %q", r["code"], r["name"])
	}
	e := cudaError{code: code, name: r["name"], runtime: r["runtime"]}
	sticky, err := r.oneOf("sticky", "yes no")
	if err != nil {
		return cudaError{}, err
	}
	surface, err := r.oneOf("surface", "call sync")
	if err != nil {
		return cudaError{}, err
	}
	if e.sticky = sticky == "yes"; surface == "sync" {
		e.surface = SurfaceSync
	}
	e.classes, err = parseClass(r["classes"])
	return e, err
}

func nvmlOf(r row) (nvmlError, error) {
	code, err := strconv.Atoi(r["code"])
	if err != nil || code < 1 || r["name"] == "" {
		return nvmlError{}, fmt.Errorf("code %q, name %q", r["code"], r["name"])
	}
	at, err := r.oneOf("at", "init device")
	return nvmlError{code, r["name"], at == "init"}, err
}

func findError(code int) (cudaError, bool) {
	all := loaded().errors
	i, ok := slices.BinarySearchFunc(all, code, func(e cudaError, code int) int { return cmp.Compare(e.code, code) })
	if !ok {
		return cudaError{}, false
	}
	return all[i], true
}

func findNVML(code int) (nvmlError, bool) {
	all := loaded().nvml
	i, ok := slices.BinarySearchFunc(all, code, func(e nvmlError, code int) int { return cmp.Compare(e.code, code) })
	if !ok {
		return nvmlError{}, false
	}
	return all[i], true
}

// ErrorName returns the name of a CUresult, such as CUDA_ERROR_LAUNCH_FAILED, or CUDA_SUCCESS for 0. It returns the
// number if the code has no name.
func ErrorName(code int) string {
	if code == 0 {
		return "CUDA_SUCCESS"
	}
	if e, ok := findError(code); ok {
		return "CUDA_ERROR_" + e.name
	}
	return strconv.Itoa(code)
}

// RuntimeErrorName returns the name of the code in the CUDA runtime, such as cudaErrorLaunchFailure, or "" if it has
// none.
func RuntimeErrorName(code int) string {
	if e, ok := findError(code); ok && e.runtime != "" {
		return "cudaError" + e.runtime
	}
	return ""
}

// NVMLErrorName returns the name of an nvmlReturn_t, such as NVML_ERROR_GPU_IS_LOST, or NVML_SUCCESS for 0.
func NVMLErrorName(code int) string {
	if code == 0 {
		return "NVML_SUCCESS"
	}
	if e, ok := findNVML(code); ok {
		return "NVML_ERROR_" + e.name
	}
	return strconv.Itoa(code)
}

// StickyByNature reports whether, on real hardware, the context is unusable after the error until the process ends.
func StickyByNature(code int) bool {
	e, _ := findError(code)
	return e.sticky
}

// Errors returns the named CUDA codes in ascending order, for shell completion.
func Errors() []int {
	var codes []int
	for _, e := range loaded().errors {
		codes = append(codes, e.code)
	}
	return codes
}

// NVMLErrors returns the NVML codes in ascending order.
func NVMLErrors() []int {
	var codes []int
	for _, e := range loaded().nvml {
		codes = append(codes, e.code)
	}
	return codes
}

// ParseError parses a CUDA error: its number (719), its name (CUDA_ERROR_LAUNCH_FAILED, launch-failed) or its name in
// the CUDA runtime (cudaErrorLaunchFailure). Case is ignored. If parsing fails, the returned error suggests similar
// names.
func ParseError(text string) (int, error) {
	names := map[string]int{}
	for _, e := range loaded().errors {
		names[plain(e.name)] = e.code
		if runtime := plain(e.runtime); runtime != "" && names[runtime] == 0 {
			names[runtime] = e.code
		}
	}
	code, err := parseCode(text, names, "CUDA error", ErrorName, "cudaerror", "cuerror")
	if err == nil && code == 0 {
		return 0, fmt.Errorf("%s is not an error: every call that succeeds returns it", text)
	}
	return code, err
}

// ParseNVMLError parses an NVML return code: its number (15) or its name (NVML_ERROR_GPU_IS_LOST, gpu-is-lost). Case is
// ignored.
func ParseNVMLError(text string) (int, error) {
	names := map[string]int{}
	for _, e := range loaded().nvml {
		names[plain(e.name)] = e.code
	}
	code, err := parseCode(text, names, "NVML error", NVMLErrorName, "nvmlerror")
	if err == nil && code == 0 {
		return 0, fmt.Errorf("%s is not an error: every call that succeeds returns it", text)
	}
	return code, err
}

// parseCode parses a code: a number for which a name is known, or a name with or without one of the prefixes.
func parseCode(
	text string, names map[string]int, what string, nameOf func(int) string, prefixes ...string,
) (int, error) {
	word := plain(text)
	if word == "" {
		return 0, fmt.Errorf("the %s is empty", what)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		if nameOf(n) != strconv.Itoa(n) {
			return n, nil
		}
		return 0, fmt.Errorf("%d is not a known %s", n, what)
	}
	for _, prefix := range append(prefixes, "") {
		if code, ok := names[strings.TrimPrefix(word, prefix)]; ok {
			return code, nil
		}
	}
	for _, prefix := range prefixes {
		word = strings.TrimPrefix(word, prefix)
	}
	if near := nearest(word, names); len(near) > 0 {
		var full []string
		for _, code := range near {
			full = append(full, fmt.Sprintf("%s (%d)", nameOf(code), code))
		}
		return 0, fmt.Errorf("%q is not a known %s; did you mean %s?", text, what, strings.Join(full, " or "))
	}
	return 0, fmt.Errorf("%q is not a known %s: must be a number or a name, such as %s", text, what, example(what))
}

func example(what string) string {
	if strings.HasPrefix(what, "NVML") {
		return "15 or gpu-is-lost"
	}
	return "719 or launch-failed"
}

// plain returns a name in lower case without separators.
func plain(text string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(strings.TrimSpace(text)))
}

// nearest returns the codes of at most three names that contain the word or differ from it in a few letters, closest
// first.
func nearest(word string, names map[string]int) []int {
	type candidate struct{ code, distance int }
	allowed := max(2, len(word)/4)
	if len(word) < 5 {
		allowed = 1
	}
	var all []candidate
	for name, code := range names {
		d := distance(word, name)
		if len(word) >= 3 && strings.Contains(name, word) {
			d = min(d, 1)
		}
		if d <= allowed {
			all = append(all, candidate{code, d})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.code, b.code))
	})
	var codes []int
	for _, c := range all {
		if !slices.Contains(codes, c.code) && len(codes) < 3 {
			codes = append(codes, c.code)
		}
	}
	return codes
}

// distance returns the Levenshtein distance between a and b.
func distance(a, b string) int {
	line := make([]int, len(b)+1)
	for j := range line {
		line[j] = j
	}
	for i := range len(a) {
		corner := line[0]
		line[0]++
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = line[j+1]
			line[j+1] = min(change, line[j]+1, line[j+1]+1)
		}
	}
	return line[len(b)]
}

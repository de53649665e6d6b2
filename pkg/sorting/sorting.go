// Package sorting sorts slices as slices.SortFunc and slices.SortStableFunc do, without their weight: the compiler
// makes 15 KB of code for each type of element that these sort, which was 600 KB of the plugin. Here, all types share
// the code of package sort.
package sorting

import "sort"

// Func sorts a slice. The order of equal elements is not defined.
func Func[E any](s []E, compare func(a, b E) int) {
	sort.Slice(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}

// StableFunc sorts a slice and keeps the order of equal elements.
func StableFunc[E any](s []E, compare func(a, b E) int) {
	sort.SliceStable(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}

//go:build !packed

package cudafault

import "embed"

// files contains the shims that `make shim` builds (the build is reproducible), the lists of functions that the shims
// hook, and the tables.
//
//go:embed lib/*/*.so lib/*/crash shim/*.def *.tsv
var files embed.FS

// embedded returns one of the embedded files.
func embedded(name string) ([]byte, error) { return files.ReadFile(name) }

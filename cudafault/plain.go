//go:build !packed

package cudafault

import "embed"

// files are the shims that `make shim` builds (the build is reproducible), the lists of functions that they hook, and
// the tables.
//
//go:embed lib/*/*.so lib/*/crash shim/*.def *.tsv
var files embed.FS

// embedded returns one of the files.
func embedded(name string) ([]byte, error) { return files.ReadFile(name) }

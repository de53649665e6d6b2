//go:build !packed

package cudafault

import "embed"

// libraries are the shims that `make shim` builds. The build is reproducible.
//
//go:embed lib/*/*.so
var libraries embed.FS

// embedded returns a file of libraries.
func embedded(name string) ([]byte, error) { return libraries.ReadFile(name) }

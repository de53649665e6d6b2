//go:build packed

package cudafault

import (
	"embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// files contains, in compressed form, the shims that `make shim` builds, the lists of functions that the shims hook,
// and the tables.
//
//go:embed lib/*/*.so.zst lib/*/crash.zst shim/*.def.zst *.tsv.zst
var files embed.FS

// embedded returns one of the embedded files.
func embedded(name string) ([]byte, error) {
	file, err := files.ReadFile(name + ".zst")
	if err != nil {
		return nil, err
	}
	return packed.Unpack(file)
}

//go:build packed

package cudafault

import (
	"embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// files are the shims that `make shim` builds, the lists of functions that they hook, and the tables, compressed.
//
//go:embed lib/*/*.so.zst lib/*/crash.zst shim/*.def.zst *.tsv.zst
var files embed.FS

// embedded returns one of the files.
func embedded(name string) ([]byte, error) {
	file, err := files.ReadFile(name + ".zst")
	if err != nil {
		return nil, err
	}
	return packed.Unpack(file)
}

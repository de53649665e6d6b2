//go:build packed

package cudafault

import (
	"embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// libraries are the shims that `make shim` builds, compressed.
//
//go:embed lib/*/*.so.zst
var libraries embed.FS

// embedded returns a file of libraries.
func embedded(name string) ([]byte, error) {
	file, err := libraries.ReadFile(name + ".zst")
	if err != nil {
		return nil, err
	}
	return packed.Unpack(file)
}

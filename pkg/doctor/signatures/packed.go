//go:build packed

package signatures

import (
	_ "embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// all has the contents of all files, in one.
//
//go:embed signatures.zst
var all []byte

// files returns the contents of the files of signatures by name.
func files() (map[string][]byte, error) {
	data, err := packed.Unpack(all)
	return map[string][]byte{"signatures.yaml": data}, err
}

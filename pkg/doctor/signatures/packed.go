//go:build packed

package signatures

import (
	_ "embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// all contains the signatures from all YAML files, as compressed JSON.
//
//go:embed signatures.zst
var all []byte

func builtin() ([]*Signature, error) {
	data, err := packed.Unpack(all)
	if err != nil {
		return nil, err
	}
	return fromJSON(data)
}

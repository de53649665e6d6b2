//go:build !packed

package signatures

import (
	"embed"
	"maps"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

//go:embed *.yaml
var embedded embed.FS

func builtin() ([]*Signature, error) {
	files, err := packed.Plain(embedded)
	if err != nil {
		return nil, err
	}
	var all []*Signature
	for _, name := range slices.Sorted(maps.Keys(files)) {
		some, err := Parse(name, files[name])
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

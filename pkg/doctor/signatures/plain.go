//go:build !packed

package signatures

import (
	"embed"
	"maps"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
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
	sorting.StableFunc(all, func(a, b *Signature) int { return order(a) - order(b) })
	return all, nil
}

// order returns 0 for a signature that applies only to certain releases, which takes precedence, and 1 for others.
func order(s *Signature) int {
	if s.Defect != nil {
		return 0
	}
	return 1
}

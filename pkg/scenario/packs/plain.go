//go:build !packed

package packs

import (
	"embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

//go:embed *.yaml
var embedded embed.FS

// Files returns the contents of the files by name.
func Files() (map[string][]byte, error) { return packed.Plain(embedded) }

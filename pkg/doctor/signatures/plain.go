//go:build !packed

package signatures

import (
	"embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

//go:embed *.yaml
var embedded embed.FS

// files returns the contents of the files of signatures by name.
func files() (map[string][]byte, error) { return packed.Plain(embedded) }

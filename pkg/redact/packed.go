//go:build packed

package redact

import (
	_ "embed"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// table contains the gitleaks formats, compressed.
//
//go:embed rules.tsv.zst
var table []byte

func rules() (string, error) {
	text, err := packed.Unpack(table)
	return string(text), err
}

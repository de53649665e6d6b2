//go:build packed

package xid

import (
	_ "embed"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// The tables, compressed.
var (
	//go:embed catalog.tsv.zst
	catalogTSV []byte
	//go:embed bodies.tsv.zst
	bodiesTSV []byte
)

// largeTables returns the catalog and the line texts.
func largeTables() (catalog, bodies string, err error) {
	first, err := packed.Unpack(catalogTSV)
	second, more := packed.Unpack(bodiesTSV)
	return string(first), string(second), errors.Join(err, more)
}

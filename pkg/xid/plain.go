//go:build !packed

package xid

import _ "embed"

var (
	//go:embed catalog.tsv
	catalogTSV string
	//go:embed bodies.tsv
	bodiesTSV string
)

// largeTables returns the catalog and the wordings.
func largeTables() (catalog, bodies string, err error) { return catalogTSV, bodiesTSV, nil }

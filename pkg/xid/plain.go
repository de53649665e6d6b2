//go:build !packed

package xid

import _ "embed"

var (
	//go:embed catalog.tsv
	catalogTSV string
	//go:embed bodies.tsv
	bodiesTSV string
)

// largeTables returns the catalog and the line texts.
func largeTables() (catalog, bodies string, err error) { return catalogTSV, bodiesTSV, nil }

// Package packs has the files of the scenarios that come with the program.
package packs

import "embed"

// Files are the scenarios, one per file.
//
//go:embed *.yaml
var Files embed.FS

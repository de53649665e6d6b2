// Package packs embeds the built-in scenarios.
package packs

import "embed"

// Files are the scenarios, one per file.
//
//go:embed *.yaml
var Files embed.FS

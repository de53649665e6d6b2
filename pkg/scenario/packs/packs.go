// Package packs embeds the built-in scenarios, one per file.
package packs

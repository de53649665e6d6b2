// Package containerd reads containerd's configuration as the daemon does, and computes faults that change as few bytes
// as possible.
//
// Load reads the files, Config.Merged returns the configuration that the daemon computes from them, and Running returns
// the daemon's configuration as reported by CRI. Config.Break computes a fault as edits of byte ranges. Before Break
// returns an edit, it verifies three conditions: the file decodes to its old content plus the fault, all files together
// merge to their old content plus the fault, and the inverse edits restore the bytes. If that is not possible, it
// returns a RefusedError, which suggests an alternative.
//
// When a handler is removed, a comment directly above its table is kept, because it may be about something else.
// Comments and blank lines between the first and last line of the table are removed.
package containerd

// Package containerd reads containerd's configuration as the daemon does, and breaks it on purpose without touching a
// byte more than it must.
//
// Load finds the files, Config.Merged says what the daemon makes of them, Running what it says of itself over CRI, and
// Config.Break computes one fault as edits of single byte ranges. An edit is handed out only after it was checked: the
// file decodes to what it was plus the fault, all files together merge to what they were plus the fault, and the
// inverse edits give the bytes back. What cannot be done so is refused with a RefusedError, which says what to do there
// instead.
//
// When a handler is removed, a comment directly above its table stays, as what it speaks of cannot be known; comments
// and blank lines between the table's first and last line go with it.
package containerd

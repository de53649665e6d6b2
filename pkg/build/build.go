// Package build knows what this binary was built from. The linker sets the variables: see the Makefile.
package build

import "runtime"

// Set by -ldflags "-X".
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
	date    = "unknown"
)

// Info is what a binary was built from.
type Info struct {
	Version  string `json:"version"`  // semantic version with v
	Commit   string `json:"commit"`   // git commit
	Date     string `json:"date"`     // of the commit, RFC 3339
	Go       string `json:"go"`       // of the toolchain
	Platform string `json:"platform"` // OS/architecture
}

// Get returns this binary's.
func Get() Info {
	return Info{
		Version: version, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

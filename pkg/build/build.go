// Package build describes the build of this binary. The linker sets the variables: see the Makefile.
package build

import "runtime"

// Set by -ldflags "-X".
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
	date    = "unknown"
)

// Info describes the build of a binary.
type Info struct {
	Version  string `json:"version"`  // semantic version with v
	Commit   string `json:"commit"`   // git commit
	Date     string `json:"date"`     // date of the commit, RFC 3339
	Go       string `json:"go"`       // version of the toolchain
	Platform string `json:"platform"` // OS/architecture
}

// Get returns information about this binary.
func Get() Info {
	return Info{
		Version: version, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

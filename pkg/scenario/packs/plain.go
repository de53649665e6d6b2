//go:build !packed

package packs

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var embedded embed.FS

// Files returns the contents of the files by name.
func Files() (map[string][]byte, error) {
	names, err := fs.Glob(embedded, "*.yaml")
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, name := range names {
		if all[name], err = embedded.ReadFile(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

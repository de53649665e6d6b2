//go:build !packed

package signatures

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var embedded embed.FS

// files returns the contents of the files of signatures by name.
func files() (map[string][]byte, error) {
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

//go:build !packed

package signatures

import (
	"embed"
	"io/fs"
	"iter"
)

//go:embed *.yaml
var plain embed.FS

// files returns the names and contents of the files of signatures.
func files() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		names, err := fs.Glob(plain, "*.yaml")
		if err != nil {
			panic(err)
		}
		for _, name := range names {
			data, err := plain.ReadFile(name)
			if err != nil {
				panic(err)
			}
			if !yield(name, data) {
				return
			}
		}
	}
}

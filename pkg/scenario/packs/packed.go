//go:build packed

package packs

import (
	_ "embed"
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// all contains all files, each after a header with its path, in the format of tail(1).
//
//go:embed packs.zst
var all []byte

var header = regexp.MustCompile(`(?m)^==> (?:.*/)?(\S+\.yaml) <==\n`)

// Files returns the contents of the files by name.
func Files() (map[string][]byte, error) {
	text, err := packed.Unpack(all)
	if err != nil {
		return nil, err
	}
	found := header.FindAllSubmatchIndex(text, -1)
	files := map[string][]byte{}
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		files[string(text[at[2]:at[3]])] = text[at[1]:end]
	}
	return files, nil
}

//go:build packed

package signatures

import (
	_ "embed"

	"github.com/klauspost/compress/zstd"
)

// packed has all files, compressed by `make`, because the program must stay small.
//
//go:embed signatures.zst
var packed []byte

// files returns the contents of the files of signatures by name.
func files() (map[string][]byte, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	data, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"signatures.yaml": data}, nil
}

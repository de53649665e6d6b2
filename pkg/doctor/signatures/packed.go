//go:build packed

package signatures

import (
	_ "embed"
	"iter"

	"github.com/klauspost/compress/zstd"
)

// packed has all files, compressed by `make`, because the program must stay small.
//
//go:embed signatures.zst
var packed []byte

// files returns the names and contents of the files of signatures.
func files() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			panic(err)
		}
		defer decoder.Close()
		data, err := decoder.DecodeAll(packed, nil)
		if err != nil {
			panic(err)
		}
		yield("signatures.yaml", data)
	}
}

// Package packed reads what `make` has compressed with hack/pack for embedding, because the program must stay small.
package packed

import "github.com/klauspost/compress/zstd"

// Unpack returns the contents of a compressed file.
func Unpack(file []byte) ([]byte, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(file, nil)
}

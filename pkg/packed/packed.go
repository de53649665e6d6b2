// Package packed reads embedded YAML files. `make` compresses them with hack/pack, because the program must stay small.
// In builds without the tag packed, they are not compressed.
package packed

import (
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// Plain returns the contents of the YAML files in a directory, keyed by file name.
func Plain(dir fs.FS) (map[string][]byte, error) {
	names, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, name := range names {
		if all[name], err = fs.ReadFile(dir, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Unpack returns the contents of a compressed file.
func Unpack(file []byte) ([]byte, error) { return UnpackWith(nil, file) }

// UnpackWith returns the contents of a file that was compressed with another file as the dictionary. base is the
// contents of that other file.
func UnpackWith(base, file []byte) ([]byte, error) {
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1)}
	if len(base) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(0, base))
	}
	decoder, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(file, nil)
}

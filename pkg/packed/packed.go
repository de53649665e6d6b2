// Package packed reads embedded YAML files. They are compressed by `make` with hack/pack, because the program must stay
// small, or uncompressed in builds without the tag packed.
package packed

import (
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// Plain returns the contents of the YAML files in a directory by name.
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
func Unpack(file []byte) ([]byte, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(file, nil)
}

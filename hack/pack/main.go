// Command pack compresses a file with Zstandard at the highest level into FILE.zst. The output is reproducible.
//
//	go run -C hack/pack . FILE [BASE.zst]
//
// With BASE.zst, which this command made before, FILE.zst refers to the contents of BASE where both are alike, and
// unpacking it needs BASE as a dictionary.
//
// It is a separate module because it uses the original C library, which makes the plugin's files 10 % smaller than the
// Go library that the plugin uses for decompression would.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/DataDog/zstd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// highest is the level of `zstd --ultra -22`.
const highest = 22

func run(args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("usage: pack FILE [BASE.zst]")
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	compressed, err := compress(raw, args[1:])
	if err != nil {
		return err
	}
	return os.WriteFile(args[0]+".zst", compressed, 0o644)
}

// compress uses the contents of the first file of bases, if there is one, as a dictionary.
func compress(raw []byte, bases []string) ([]byte, error) {
	if len(bases) == 0 {
		return zstd.CompressLevel(nil, raw, highest)
	}
	base, err := os.ReadFile(bases[0])
	if err != nil {
		return nil, err
	}
	if base, err = zstd.Decompress(nil, base); err != nil {
		return nil, err
	}
	processor, err := zstd.NewBulkProcessor(base, highest)
	if err != nil {
		return nil, err
	}
	return processor.Compress(nil, raw)
}

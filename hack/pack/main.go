// Command pack compresses a file with Zstandard at the highest level into FILE.zst. The output is reproducible.
package main

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: pack FILE")
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	// Use one goroutine, because the output depends on the number of goroutines. The window is as large as the file,
	// and the header contains the file size.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(16<<20), zstd.WithSingleSegment(true))
	if err != nil {
		return err
	}
	return os.WriteFile(args[0]+".zst", encoder.EncodeAll(raw, nil), 0o644)
}

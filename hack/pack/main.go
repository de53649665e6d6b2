// Command pack compresses a file with Zstandard, as small as it gets, into FILE.zst: the same bytes wherever it runs.
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
	// One goroutine, or what comes out would depend on how many there are. The window is as large as the file, and its
	// size is in the header.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(16<<20), zstd.WithSingleSegment(true))
	if err != nil {
		return err
	}
	return os.WriteFile(args[0]+".zst", encoder.EncodeAll(raw, nil), 0o644)
}

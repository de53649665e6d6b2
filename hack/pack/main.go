// Command pack compresses a file with Zstandard at the highest level into FILE.zst. The output is reproducible.
//
// It is a separate module, because it uses the original library in C: the plugin's files become 10 % smaller than with
// the Go library that the plugin uses for decompression.
package main

import (
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
	if len(args) != 1 {
		return fmt.Errorf("usage: pack FILE")
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	packed, err := zstd.CompressLevel(nil, raw, highest)
	if err != nil {
		return err
	}
	return os.WriteFile(args[0]+".zst", packed, 0o644)
}

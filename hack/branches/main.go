// Command branches prepares the node helper for compression: see packed.Absolute.
//
//	go run ./hack/branches FILE amd64|arm64
package main

import (
	"fmt"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: branches FILE ARCHITECTURE")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "branches:", err)
		os.Exit(1)
	}
}

func run(file, arch string) error {
	program, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	packed.Absolute(program, arch)
	return os.WriteFile(file, program, 0o600)
}

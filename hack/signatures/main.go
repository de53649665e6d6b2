// Command signatures prints doctor's signatures as JSON, which `make` compresses and the program reads at each start.
// Parsing YAML would take several times as long.
package main

import (
	"fmt"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "signatures:", err)
		os.Exit(1)
	}
}

func run() error {
	data, err := signatures.JSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(data)
	return err
}

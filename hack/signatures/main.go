// Command signatures prints the signatures of doctor as JSON, which `make` compresses and the program reads at each
// start: YAML takes several times as long.
package main

import (
	"encoding/json"
	"errors"
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
	all := signatures.Builtin()
	if len(all) == 0 {
		return errors.New("the signatures have errors: go test ./pkg/doctor/signatures describes them")
	}
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(signatures.File{Signatures: all})
}

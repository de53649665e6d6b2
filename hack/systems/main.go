// Command systems type-checks the client for macOS and Windows. It reads only source files, while `go vet` would first
// compile all dependencies for each system.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

// client lists the packages that run on users' machines.
var client = []string{"./cmd/kubectl-gpu_fault", "./plugin/...", "./pkg/...", "./debugpod/..."}

func main() {
	for _, system := range []string{"darwin", "windows"} {
		if err := check(system); err != nil {
			fmt.Fprintf(os.Stderr, "systems: %s: %v\n", system, err)
			os.Exit(1)
		}
	}
}

// check type-checks the client and its tests for a system. It prints errors to standard error.
func check(system string) error {
	all, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes,
		Env:   append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"),
		Tests: true,
	}, client...)
	switch n := packages.PrintErrors(all); {
	case err != nil:
		return err
	case n > 0:
		return fmt.Errorf("%d errors", n)
	case len(all) == 0:
		return fmt.Errorf("no packages match %v", client)
	}
	return nil
}

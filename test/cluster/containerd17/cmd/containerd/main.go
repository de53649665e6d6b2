// Command containerd is the daemon of containerd 1.7, for tests of what differs from 2.x: how drop-ins are merged, and
// what its errors say.
package main

import (
	"fmt"
	"os"

	"github.com/containerd/containerd/cmd/containerd/command"

	_ "github.com/containerd/containerd/cmd/containerd/builtins"
)

func main() {
	if err := command.App().Run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %s\n", err)
		os.Exit(1)
	}
}

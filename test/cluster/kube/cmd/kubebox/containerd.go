package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"
	ctrapp "github.com/containerd/containerd/v2/cmd/ctr/app"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
)

func containerd() int {
	if err := command.App().Run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %s\n", err)
		return 1
	}
	return 0
}

func ctr() int {
	if err := ctrapp.New().RunContext(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "ctr: %s\n", err)
		return 1
	}
	return 0
}

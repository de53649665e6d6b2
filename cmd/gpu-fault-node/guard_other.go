//go:build !linux

package main

import (
	"context"
	"errors"
)

func closeOnExec(int) {}

func guardRun(context.Context, string) error {
	return errors.New("the dead man's switch is supported only on Linux")
}

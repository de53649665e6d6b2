//go:build !linux

package node

import (
	"context"
	"errors"
	"os"
)

func openKernelLog(string) (kernelLog, error) {
	return nil, errors.New("only Linux has a kernel log that can be written")
}

func nvidiaSMI(context.Context, string) (string, error) {
	return "", errors.New("it is looked for on Linux only")
}

func hostname(string) (string, error) { return os.Hostname() }

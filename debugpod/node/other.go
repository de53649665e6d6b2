//go:build !linux

package node

import (
	"errors"
	"os"
)

func openKernelLog(string) (kernelLog, error) {
	return nil, errors.New("only Linux has a kernel log that can be written")
}

func hostname(string) (string, error) { return os.Hostname() }

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

func thisKernel() moduleKernel { return nil } // openKernelLog refuses before it is asked for anything

func openFilter(Host) (packetFilter, error) {
	return nil, errors.New("only Linux has nftables")
}

func mountNode(Host, string) (unmount func() error, err error) {
	return nil, errors.New("only Linux has namespaces of mounts")
}

//go:build !linux

package containerruntime

import (
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func peerOf(string) (int, error) { return 0, hostfs.ErrLinuxOnly }

func xattrs(string) (map[string][]byte, error) { return nil, nil }

func immutable(string) string { return "" }

func volatile(string) string { return "" }

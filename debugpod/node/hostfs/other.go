//go:build !linux

package hostfs

import (
	"errors"
	"io/fs"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

var ErrLinuxOnly = errors.New("supported only on Linux")

func Ownership(fs.FileInfo, *deadman.Meta) error { return ErrLinuxOnly }

//go:build !linux

package diagnose

import (
	"io/fs"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func openBacklog(string) (kernelBacklog, error) { return nil, hostfs.ErrLinuxOnly }

func monotonic() time.Duration { return 0 }

func deviceNumbers(fs.FileInfo) (major, minor int) { return 0, 0 }

func statFilesystem(string) (api.Filesystem, error) { return api.Filesystem{}, hostfs.ErrLinuxOnly }

func listens(string) *bool { return nil }

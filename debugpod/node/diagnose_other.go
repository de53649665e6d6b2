//go:build !linux

package node

import (
	"context"
	"io/fs"
	"time"
)

func runCommand(context.Context, command) (string, error) { return "", errLinuxOnly }

func openBacklog(string) (kernelBacklog, error) { return nil, errLinuxOnly }

func monotonic() time.Duration { return 0 }

func deviceNumbers(fs.FileInfo) (major, minor int) { return 0, 0 }

func statFilesystem(string) (Filesystem, error) { return Filesystem{}, errLinuxOnly }

func listens(string) *bool { return nil }

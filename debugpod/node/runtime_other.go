//go:build !linux

package node

import (
	"context"
	"errors"
	"io/fs"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

var errLinuxOnly = errors.New("only on Linux")

func peerOf(string) (int, error) { return 0, errLinuxOnly }

func runWithRoot(context.Context, rootFS, string, ...string) (string, error) { return "", errLinuxOnly }

func isExitError(error) bool { return false }

func ownership(fs.FileInfo, *deadman.Meta) error { return errLinuxOnly }

func xattrs(string) (map[string][]byte, error) { return nil, nil }

func immutable(string) string { return "" }

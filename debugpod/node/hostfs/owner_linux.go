package hostfs

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Ownership fills in what stat(2) tells beyond fs.FileInfo.
func Ownership(info fs.FileInfo, meta *deadman.Meta) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the system does not tell them")
	}
	meta.Mode, meta.UID, meta.GID = stat.Mode&0o7777, int(stat.Uid), int(stat.Gid)
	return nil
}

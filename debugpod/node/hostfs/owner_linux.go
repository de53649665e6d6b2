package hostfs

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Ownership sets the fields of meta that stat(2) provides in addition to fs.FileInfo.
func Ownership(info fs.FileInfo, meta *deadman.Meta) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the system does not report the owner")
	}
	meta.Mode, meta.UID, meta.GID = stat.Mode&0o7777, int(stat.Uid), int(stat.Gid)
	return nil
}

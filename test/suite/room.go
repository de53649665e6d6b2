package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// least is the free space that a run needs when most of it is in Go's build cache already. Without a build cache, a run
// of .ci/run took 9 GB.
const least = 4 << 30

// hasRoom returns an error if the disks of the repository, of Go's build cache and of temporary files are nearly full:
// clusters and tests would fail halfway, each in its own way.
func hasRoom(ctx context.Context, root string) error {
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("find Go's build cache: %w", err)
	}
	for _, folder := range []string{root, strings.TrimSpace(string(cache)), os.TempDir()} {
		var disk syscall.Statfs_t
		if syscall.Statfs(folder, &disk) != nil {
			continue // the folder does not exist yet
		}
		if free := disk.Bavail * uint64(disk.Bsize); free < least {
			return fmt.Errorf("the disk of %s has only %.1f GB left, but the tests need %d GB, and 10 GB without a build cache: "+
				"free some space, such as with `go clean -cache`", folder, float64(free)/(1<<30), least>>30)
		}
	}
	return nil
}

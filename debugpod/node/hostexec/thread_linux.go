package hostexec

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread calls f on a thread that ends with it, so that f may change what belongs to a thread: its namespaces, its
// capabilities.
func OnOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: nothing else ever runs on it
		if unix.Gettid() == os.Getpid() {
			// The process's first thread cannot end before the process, and /proc/self tells of it. While it waits
			// here, f has another.
			result <- OnOwnThread(f)
			return
		}
		result <- f()
	}()
	return <-result
}

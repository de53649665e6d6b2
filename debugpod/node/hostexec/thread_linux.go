package hostexec

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread calls f on a thread that terminates afterwards, so that f may change thread attributes such as namespaces
// and capabilities.
func OnOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that no other goroutine runs on it
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot terminate before the process, and /proc/self refers to it. Run f on another thread
			// while the main thread waits.
			result <- OnOwnThread(f)
			return
		}
		result <- f()
	}()
	return <-result
}

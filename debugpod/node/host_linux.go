package node

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// hostname is the host name of a UTS namespace, given by its file in /proc.
func hostname(namespace string) (string, error) {
	type result struct {
		name string
		err  error
	}
	results := make(chan result, 1)
	go func() {
		// Never unlocked: the thread stays in the other namespace, so it must end with this goroutine.
		runtime.LockOSThread()
		name, err := hostnameHere(namespace)
		results <- result{name, err}
	}()
	r := <-results
	return r.name, r.err
}

func hostnameHere(namespace string) (string, error) {
	f, err := os.Open(namespace)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWUTS); err != nil {
		return "", err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(uts.Nodename[:]), nil
}

package inspect

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
)

// hostname returns the host name in a UTS namespace. namespace is the namespace's file in /proc.
func hostname(namespace string) (string, error) {
	var name string
	err := hostexec.OnOwnThread(func() (err error) {
		name, err = hostnameHere(namespace)
		return err
	})
	return name, err
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

package hostexec

import (
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// withheld returns the capabilities that programs on the node must not have. With them, nvidia-smi as root would load
// the driver and create its device nodes (nvidia-modprobe(1)), which would change the node and hide the problem to
// diagnose.
func withheld() []uint { return []uint{unix.CAP_SYS_MODULE, unix.CAP_MKNOD} }

// RunWithheld calls cmd.Run without the withheld capabilities.
func RunWithheld(cmd *exec.Cmd) error {
	return OnOwnThread(func() error {
		if err := withhold(); err != nil {
			return fmt.Errorf("not run: %w", err)
		}
		return cmd.Run()
	})
}

// withhold removes the withheld capabilities from future children of this thread.
func withhold() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	for _, c := range withheld() {
		bit := uint32(1) << (c % 32)
		sets[c/32].Inheritable &^= bit // the bounding set does not limit inherited capabilities
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && sets[c/32].Permitted&bit != 0 { // otherwise, children cannot inherit it
			return fmt.Errorf("drop capability %d, which allows changes to the node: %w", c, err)
		}
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("limit the inherited capabilities: %w", err)
	}
	return nil
}
